"""Head steps of a light client against NumPy in float64, written another way."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pflego_light.head import Descent, Sight

Doubles = npt.NDArray[np.float64]


def stepped(phi: Doubles, wanted: Doubles, head: Doubles, rate: float, count: int) -> Doubles:
    """W <- W - rate (softmax(Phi W^T) - T)^T Phi / n, row by row."""
    for _ in range(count):
        z = phi @ head.T
        chances = np.exp(z - z.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        head = head - rate * (chances - wanted).T @ phi / len(phi)
    return head


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
@pytest.mark.parametrize("scale", [1.0, 300.0], ids=["usual", "far from zero"])
def test_plain_steps_of_a_softmax(classes: int, scale: float) -> None:
    rng = np.random.default_rng(classes)
    features, labels = rng.normal(size=(40, 6)), rng.integers(classes, size=40)
    wanted, first = np.eye(classes)[labels], rng.normal(size=(classes, 7)) * scale
    sight = Sight(features.astype(np.float32), wanted.astype(np.float32), softmax=True)
    found = Descent(0.3).steps(sight, first.astype(np.float32), 25)
    phi = np.hstack([features, np.ones((40, 1))])
    np.testing.assert_allclose(found, stepped(phi, wanted, first, 0.3, 25), rtol=2e-5, atol=2e-5 * scale)


def test_no_steps_change_nothing() -> None:
    head = np.ones((3, 3), np.float32)
    sight = Sight(np.ones((4, 2), np.float32), np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], softmax=True)
    assert np.array_equal(Descent(0.3).steps(sight, head, 0), head)
