from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import optim

from pflego.learning.heads import Descent
from pflego.weights import Weights
from tests.support.reference import F64, Adam

SHAPES = {"head.weight": (3, 4), "head.bias": (3,)}


def some_gradients(count: int = 12) -> list[dict[str, F64]]:
    """Of very different sizes, and one of them zero."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-4, 2, size=count)
    sizes[4] = 0
    return [{name: size * rng.normal(size=shape) for name, shape in SHAPES.items()} for size in sizes]


def tensors(arrays: dict[str, F64]) -> Weights:
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def walk(descent: Descent) -> list[dict[str, F64]]:
    """The weights after every move, from zero."""
    move = descent.start()
    at = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    path = []
    for gradient in some_gradients():
        moves = move(tensors(gradient))
        at = {name: w - moves[name].numpy() for name, w in at.items()}
        path.append(at)
    return path


def assert_same_path(descent: Descent, step: Callable[[str, F64, F64], F64]) -> None:
    """Compare with a function from (name, weights, gradient) to the next weights."""
    at = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for gradient, found in zip(some_gradients(), walk(descent), strict=True):
        at = {name: step(name, w, gradient[name]) for name, w in at.items()}
        for name in SHAPES:
            np.testing.assert_allclose(found[name], at[name], rtol=1e-12, atol=1e-15)


def test_gd_moves_by_rate_times_gradient() -> None:
    assert_same_path(Descent(0.3), lambda _, w, g: w - 0.3 * g)


@pytest.mark.parametrize("mu", [0.5, 0.9])
def test_momentum_follows_its_recursion(mu: float) -> None:
    velocity = {name: np.zeros(shape) for name, shape in SHAPES.items()}

    def step(name: str, w: F64, g: F64) -> F64:
        velocity[name] = mu * velocity[name] + g
        return np.asarray(w - 0.3 * velocity[name])

    assert_same_path(Descent(0.3, "momentum", mu), step)


def test_adam_follows_its_recursion() -> None:
    adam = {name: Adam(0.3) for name in SHAPES}
    assert_same_path(Descent(0.3, "adam"), lambda name, w, g: adam[name].step(w, g))


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_rules_are_those_of_torch(rule: str) -> None:
    parameters = {
        name: torch.zeros(shape, dtype=torch.float64, requires_grad=True) for name, shape in SHAPES.items()
    }
    optimizer: optim.Optimizer = (
        optim.Adam(parameters.values(), lr=0.3)
        if rule == "adam"
        else optim.SGD(parameters.values(), lr=0.3, momentum=0.9)
    )
    for gradient, found in zip(some_gradients(), walk(Descent(0.3, rule)), strict=True):  # type: ignore[arg-type]
        for name, parameter in parameters.items():
            parameter.grad = torch.from_numpy(gradient[name])
        optimizer.step()
        for name, parameter in parameters.items():
            np.testing.assert_allclose(found[name], parameter.detach().numpy(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("rule", ["gd", "momentum", "adam"])
def test_every_start_is_afresh(rule: str) -> None:
    descent = Descent(0.3, rule)  # type: ignore[arg-type]
    first, second, *_ = some_gradients()
    one, other = descent.start(), descent.start()
    moved = one(tensors(first))
    one(tensors(second))
    late = other(tensors(first))
    assert all(torch.equal(moved[name], late[name]) for name in SHAPES)


@pytest.mark.parametrize("rule", ["gd", "momentum", "adam"])
def test_gradients_are_left_as_they_are(rule: str) -> None:
    gradient = tensors(some_gradients()[0])
    before = {name: g.clone() for name, g in gradient.items()}
    move = Descent(0.3, rule).start()  # type: ignore[arg-type]
    for _ in range(3):
        move(gradient)
    assert all(torch.equal(before[name], g) for name, g in gradient.items())
