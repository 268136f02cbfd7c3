"""Dense networks in closed form, against NumPy in float64 and against automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.learning.dense import Dense
from pflego.learning.forward import ForwardPass
from pflego.learning.problem import Problem, Streaming

N, D = 11, 6


def client() -> pflego.Client:
    x = torch.randn(N, 2, D // 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return pflego.Client("a", x, torch.arange(N) % 3)


def problem(backbone: nn.Module, features: int, **streaming: object) -> Problem:
    federation = pflego.Federation([client()])
    model = pflego.Model(backbone.double(), features=features)
    return Problem(
        federation[0],
        model,
        federation.task,
        torch.device("cpu"),
        streaming=Streaming(**streaming),  # type: ignore[arg-type]
    )


NUMPY: dict[str, tuple[type[nn.Module], Callable[..., object], Callable[..., object]]] = {
    "ReLU": (nn.ReLU, lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(float)),
    "Tanh": (nn.Tanh, np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "Sigmoid": (nn.Sigmoid, lambda z: 1 / (1 + np.exp(-z)), lambda z: np.exp(-z) / (1 + np.exp(-z)) ** 2),
}


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("slice_size", [None, 4])
def test_features_and_gradients_are_numpys(name: str, slice_size: int | None) -> None:
    layer, value_of, slope_of = NUMPY[name]
    torch.manual_seed(3)
    own = problem(
        nn.Sequential(nn.Flatten(), nn.Linear(D, 5), layer(), nn.Linear(5, 4)), 4, slice_size=slice_size
    )
    assert own.model.dense is not None
    weights = own.model.weights()
    slopes = torch.randn(N, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    forward = ForwardPass([own], weights)
    gradient = forward.backward(slopes)

    w, b, v, c = (weights[key].numpy() for key in ("1.weight", "1.bias", "3.weight", "3.bias"))
    x, g = client().x_train.flatten(1).numpy(), slopes.numpy()
    z = x @ w.T + b
    inner = (g @ v) * slope_of(z)
    expected = {
        "1.weight": inner.T @ x,
        "1.bias": inner.sum(axis=0),
        "3.weight": g.T @ value_of(z),
        "3.bias": g.sum(axis=0),
    }
    np.testing.assert_allclose(forward.features.numpy(), value_of(z) @ v.T + c, atol=1e-12)
    assert list(gradient) == list(own.model.names)
    for key, tensor in gradient.items():
        np.testing.assert_allclose(tensor.numpy(), expected[key], atol=1e-12, err_msg=key)


def frozen() -> nn.Module:
    first = nn.Linear(D, 5)
    first.weight.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(5, 4, bias=False), nn.Tanh())


def one_activation_twice() -> nn.Module:
    squash = nn.Tanh()
    return nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(D, 5), squash, nn.Linear(5, 4), squash)


@pytest.mark.parametrize("make", [frozen, one_activation_twice])
def test_gradients_are_those_of_automatic_differentiation(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(5)
    backbone = make()
    closed, graph = problem(backbone, 4), problem(backbone, 4)
    assert closed.model.dense is not None
    monkeypatch.setitem(graph.model.__dict__, "dense", None)
    weights = {**closed.model.weights(), **closed.new_head("uniform", 1)}
    ours, theirs = closed.gradient(weights), graph.gradient(weights)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, rtol=0, atol=1e-13), name


class Own(nn.Linear):
    pass


def hooked() -> nn.Module:
    backbone = nn.Sequential(nn.Linear(D, 4))
    backbone.register_forward_hook(lambda module, x, z: 2 * z)
    return backbone


@pytest.mark.parametrize(
    "backbone",
    [
        nn.Linear(D, 4),
        nn.Sequential(nn.Flatten(), Own(D, 4)),
        nn.Sequential(nn.Linear(D, 4), nn.LayerNorm(4)),
        nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.ReLU()),
        nn.Sequential(nn.Flatten(start_dim=2), nn.Linear(D, 4)),
        (lambda layer: nn.Sequential(layer, nn.ReLU(), layer))(nn.Linear(D, D)),
        hooked(),
        nn.Sequential(),
    ],
    ids=["no sequence", "own layer", "norm", "two activations", "flat in part", "twice", "a hook", "nothing"],
)
def test_other_backbones_have_no_closed_form(backbone: nn.Module) -> None:
    assert Dense.of(backbone) is None


def test_a_layer_that_sees_samples_in_pieces_is_differentiated() -> None:
    torch.manual_seed(6)
    own = problem(nn.Sequential(nn.Linear(D // 2, 2), nn.ReLU(), nn.Flatten()), 4)
    assert own.model.dense is None
    assert own.gradient({**own.model.weights(), **own.new_head("uniform", 1)})["0.weight"].shape == (2, 3)
