"""The compiled loop against NumPy in float64, and against the plain one."""

from __future__ import annotations

import builtins
from math import nan

import numpy as np
import pytest
import torch

import pflego
from pflego.learning.heads import Descent, LinearHead, linear, plain_loops
from pflego.learning.task import Classification, Regression
from tests.support.reference import F64, assert_same_weights, distance, world

kernel = pytest.importorskip("pflego.learning.heads.kernel", reason="numba is not installed")

SIZES = [(1, 1, 1), (1, 5, 3), (7, 4, 2), (8, 8, 2), (31, 9, 4), (33, 200, 2), (64, 17, 10), (100, 64, 32)]


def case(n: int, m: int, k: int, scale: float = 1.0) -> tuple[F64, F64, F64]:
    """Features, one-hot labels and a head."""
    rng = np.random.default_rng(n * m * k)
    return scale * rng.normal(size=(n, m)), np.eye(k)[rng.integers(k, size=n)], rng.normal(size=(k, m + 1))


def numpy_steps(
    phi: F64, t: F64, W: F64, *, steps: int, rate: float, decay: float = 0.0, anchor: F64 | None = None
) -> F64:
    """The same by the book."""
    phi = np.hstack([phi, np.ones((len(phi), 1))])
    for _ in range(steps):
        z = phi @ W.T
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        W = W - rate * ((p - t).T @ phi / len(phi) + decay * (W - (0 if anchor is None else anchor)))
    return W


def steps(phi: F64, t: F64, W: F64, descent: Descent, number: int = 20) -> torch.Tensor:
    head = {"head": torch.tensor(W, dtype=torch.float32)}
    features, targets = (torch.tensor(a, dtype=torch.float32) for a in (phi, t))
    found = LinearHead(phi.shape[1], len(W)).descend(
        head, features, targets, Classification(), number, descent
    )
    given = torch.tensor(W, dtype=torch.float32)
    torch.testing.assert_close(head["head"], given, rtol=0, atol=0, equal_nan=True)  # is left alone
    return found["head"]


@pytest.mark.parametrize(("n", "m", "k"), SIZES)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_are_those_of_numpy(n: int, m: int, k: int, decay: float) -> None:
    phi, t, W = case(n, m, k)
    anchor = W + 1
    descent = Descent(0.05, decay=decay, anchor={"head": torch.tensor(anchor, dtype=torch.float32)})
    wanted = numpy_steps(phi, t, W, steps=20, rate=0.05, decay=decay, anchor=anchor)
    assert distance(steps(phi, t, W, descent), wanted) < 2e-6


def test_the_compiled_loop_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(kernel, "softmax_steps", lambda *_: calls.append(1))
    phi, t, W = case(9, 4, 3)
    steps(phi, t, W, Descent(0.1))
    assert calls == [1]
    with plain_loops():
        steps(phi, t, W, Descent(0.1))
    steps(phi, t, W, Descent(0.1, "momentum"))
    head = {"head": torch.tensor(W)}
    float64 = LinearHead(4, 3).descend(
        head, torch.tensor(phi), torch.tensor(t), Classification(), 2, Descent(0.1)
    )
    LinearHead(4, 3).descend(
        {"head": torch.tensor(W).float()},
        torch.tensor(phi).float(),
        torch.tensor(t).float(),
        Regression(),
        2,
        Descent(0.1),
    )
    assert calls == [1]
    assert float64["head"].dtype == torch.float64


def test_without_numba_the_plain_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name == "pflego.learning.heads" and args[2] == ("kernel",):
            raise ModuleNotFoundError("No module named 'numba'")
        return original(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    linear._load_kernel.cache_clear()
    try:
        phi, t, W = case(33, 8, 3)
        assert linear._load_kernel() is None
        assert distance(steps(phi, t, W, Descent(0.05)), numpy_steps(phi, t, W, steps=20, rate=0.05)) < 2e-6
    finally:
        linear._load_kernel.cache_clear()


@pytest.mark.parametrize(("n", "m", "k"), SIZES)
def test_smoothness_is_the_largest_eigenvalue(n: int, m: int, k: int) -> None:
    phi = np.abs(case(n, m, k)[0])  # a first eigenvalue far above the others, as after ReLU
    features = torch.tensor(phi, dtype=torch.float32)
    found = LinearHead(m, k).smoothness({"head": torch.zeros(k, m + 1)}, features, features, Classification())
    with_ones = np.hstack([phi, np.ones((n, 1))])
    assert found == pytest.approx(0.5 * np.linalg.eigvalsh(with_ones.T @ with_ones / n)[-1], rel=1e-5)
    with plain_loops():
        plain = LinearHead(m, k).smoothness(
            {"head": torch.zeros(k, m + 1)}, features, features, Classification()
        )
    assert found == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize(("n", "m", "k"), SIZES)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_loss_and_gradients_are_those_of_numpy(n: int, m: int, k: int, scale: float) -> None:
    phi, t, W = case(n, m, k, scale)
    with_ones = np.hstack([phi, np.ones((n, 1))])
    z = with_ones @ W.T
    top = z.max(axis=1, keepdims=True)
    p = np.exp(z - top) / np.exp(z - top).sum(axis=1, keepdims=True)
    losses = top[:, 0] + np.log(np.exp(z - top).sum(axis=1)) - (z * t).sum(axis=1)
    features, targets, head = (torch.tensor(a, dtype=torch.float32) for a in (phi, t, W))
    found = LinearHead(m, k).gradient({"head": head}, features, targets, Classification())
    assert float(found.loss) == pytest.approx(losses.mean(), rel=1e-5, abs=1e-6)
    alone = LinearHead(m, k).loss({"head": head}, features, targets, Classification())
    assert alone == pytest.approx(float(found.loss), rel=1e-6)
    np.testing.assert_allclose(found.head["head"], (p - t).T @ with_ones / n, rtol=1e-3, atol=1e-5 * scale)
    np.testing.assert_allclose(found.features, (p - t) @ W[:, :-1] / n, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 30.0, 1e4])
def test_small_and_large_outputs(scale: float) -> None:
    phi, t, W = case(40, 6, 4, scale)
    found = steps(phi, t, W, Descent(0.05 / scale**2), number=5)
    assert distance(found, numpy_steps(phi, t, W, steps=5, rate=0.05 / scale**2)) < 1e-5


@pytest.mark.parametrize("bad", [nan, float("inf")])
@pytest.mark.parametrize("where", ["features", "head"])
def test_what_is_no_number_does_not_become_one(bad: float, where: str) -> None:
    phi, t, W = case(20, 5, 3)
    (phi if where == "features" else W)[1, 2] = bad
    assert not steps(phi, t, W, Descent(0.05)).isfinite().all()


def test_the_exponential_is_that_of_numpy() -> None:
    x = -np.logspace(-8, np.log10(86), 2000).astype(np.float32)
    found = x.copy()
    kernel._exponential(found, len(x), np.empty_like(x))
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol=3e-7)


@pytest.mark.parametrize("common_head", [False, True])
@pytest.mark.parametrize("rates", [{}, {"client_lr": 0.05, "server_lr": 0.01, "server_optimizer": "sgd"}])
def test_a_run_is_the_same_to_rounding(common_head: bool, rates: dict[str, object]) -> None:
    twin = world(dtype=torch.float32)
    algorithm = pflego.PFLEGO(steps=20, common_head=common_head, **rates)  # type: ignore[arg-type]
    fused = pflego.train(twin.federation, twin.model, algorithm, rounds=5)
    with plain_loops():
        plain = pflego.train(twin.federation, twin.model, algorithm, rounds=5)
    assert_same_weights(fused.shared, plain.shared, within=1e-5)
    for id in plain.states:
        assert_same_weights(fused.states[id], plain.states[id], within=1e-4)
