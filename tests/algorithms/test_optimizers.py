import numpy as np
import pytest
import torch
from torch import nn

from pflego import PFLEGO, FedRecon, SettingError
from pflego.algorithms.optimizers import OPTIMIZERS, optimizer_step
from pflego.weights import Weights

STEPS, RATE = 5, 0.01


def draw(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"layer/1.weight": (3, 4), "layer/1.bias": (3,), "scale": ()}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def copied(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_ordinary_optimiser(name: str) -> None:
    parameters = {key: nn.Parameter(tensor.clone()) for key, tensor in draw(0).items()}
    ordinary = OPTIMIZERS[name](parameters.values(), lr=RATE)  # type: ignore[call-arg]
    weights = draw(0)
    state: Weights = {}
    for number in range(1, STEPS + 1):
        gradient = draw(number)
        for key, parameter in parameters.items():
            parameter.grad = gradient[key].clone()
        ordinary.step()
        weights, state = optimizer_step(name, RATE, weights, gradient, state)
        assert same(weights, {key: parameter.detach() for key, parameter in parameters.items()})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_leaves_its_arguments_alone(name: str) -> None:
    weights, state = optimizer_step(name, RATE, draw(0), draw(1), {})
    before, gradient = (copied(weights), copied(state)), draw(2)
    optimizer_step(name, RATE, weights, gradient, state)
    assert same(weights, before[0])
    assert same(state, before[1])
    assert same(gradient, draw(2))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_is_a_flat_dictionary_of_tensors_by_weight(name: str) -> None:
    _, state = optimizer_step(name, RATE, draw(0), draw(1), {})
    assert {place.rpartition("/")[0] for place in state} <= draw(0).keys()
    assert all(isinstance(tensor, torch.Tensor) and not tensor.requires_grad for tensor in state.values())


def test_sgd_and_the_first_step_of_adam_by_hand() -> None:
    w, g = np.array([1.0, -2.0]), np.array([0.5, -4.0])
    weights, gradient = {"w": torch.from_numpy(w)}, {"w": torch.from_numpy(g)}
    stepped, state = optimizer_step("sgd", 0.1, weights, gradient, {})
    np.testing.assert_allclose(stepped["w"].numpy(), w - 0.1 * g, rtol=1e-15)
    assert state == {}
    stepped, _ = optimizer_step("adam", 0.1, weights, gradient, {})
    np.testing.assert_allclose(stepped["w"].numpy(), w - 0.1 * g / (np.abs(g) + 1e-8), rtol=1e-12)
    stepped, _ = optimizer_step("adam", 0.1, weights, gradient, {}, eps=0.5)
    np.testing.assert_allclose(stepped["w"].numpy(), w - 0.1 * g / (np.abs(g) + 0.5), rtol=1e-12)


def test_where_nothing_is_shared_there_is_nothing_to_do() -> None:
    assert optimizer_step("adam", RATE, {}, {}, {}) == ({}, {})


@pytest.mark.parametrize("method", [PFLEGO, FedRecon])
def test_an_unknown_optimiser_is_answered_with_the_nearest(method: type[PFLEGO | FedRecon]) -> None:
    with pytest.raises(SettingError, match=r"server_optimizer 'adm'.*'adam'"):
        method(server_optimizer="adm")


@pytest.mark.parametrize("name", ["lbfgs", "sparseadam", "muon", "optimizer", None, 3, ["adam"]], ids=str)
@pytest.mark.parametrize("method", [PFLEGO, FedRecon])
def test_what_does_not_fit_is_refused(method: type[PFLEGO | FedRecon], name: object) -> None:
    with pytest.raises(SettingError, match="server_optimizer"):
        method(server_optimizer=name)  # type: ignore[arg-type]


def test_the_usual_optimisers_are_there() -> None:
    assert {"sgd", "adam", "adamw", "rmsprop", "adagrad"} <= OPTIMIZERS.keys()
