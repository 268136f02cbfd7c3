"""PFLEGO(head_optimizer="solve"): heads at the minimum, and SGD on P(theta) = sum_i a_i min_W (l_i + decay/2 |W|^2)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import pflego
from pflego.exchange.round import Round
from pflego.learning.heads.solve import solve_head
from pflego.learning.problems import Problems
from tests.support.reference import F64, World, distance, gradients, loss, world

both_tasks = pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
both_heads = pytest.mark.parametrize("common", [False, True], ids=["own heads", "common head"])
DECAY = 0.05


def solving(**settings: object) -> pflego.PFLEGO:
    return pflego.PFLEGO(head_optimizer="solve", **settings)  # type: ignore[arg-type]


def minimised(twin: World, i: int, anchor: F64) -> tuple[F64, float]:
    """W_i(theta), and the minimum itself, by SciPy on the reference's loss."""
    site = twin.sites[i]

    def objective(flat: F64) -> tuple[float, F64]:
        W = flat.reshape(anchor.shape)
        slope = gradients(twin.net, W, site)[2] + DECAY * (W - anchor)
        return loss(twin.net, W, site) + DECAY / 2 * float(((W - anchor) ** 2).sum()), slope.ravel()

    found = minimize(
        objective, anchor.ravel(), jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 5000}
    )
    return found.x.reshape(anchor.shape), float(found.fun)


def anchors(twin: World, common: bool) -> tuple[F64, list[F64]]:
    W_0 = np.random.default_rng(7).normal(size=(twin.federation.outputs, 5))
    return W_0, [W_0[twin.rows(i)] if common else np.zeros_like(twin.heads[i]) for i in range(5)]


def envelope(twin: World, anchors: list[F64]) -> float:
    return sum(a * minimised(twin, i, anchors[i])[1] for i, a in enumerate(twin.alphas))


@both_tasks
@both_heads
def test_heads_are_at_the_minimum(regression: bool, common: bool) -> None:
    twin = world(regression=regression)
    W_0, at = anchors(twin, common)
    problems = Problems(twin.federation, twin.model)
    for i, site in enumerate(twin.sites):
        problem = problems[i]
        anchor = {"head": torch.from_numpy(W_0[twin.rows(i)])} if common else None
        phi = problem.forward(twin.model.weights()).features
        W = solve_head(problem, phi, DECAY, anchor)["head"].numpy()
        assert np.linalg.norm(gradients(twin.net, W, site)[2] + DECAY * (W - at[i])) < 1e-9  # KKT
        assert np.linalg.norm(W - minimised(twin, i, at[i])[0]) < 1e-6


@pytest.mark.parametrize("samples", [3, 40], ids=["fewer samples than features", "more"])
def test_squared_error_is_solved_from_either_side(samples: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(samples, 8)), rng.normal(size=(samples, 2))
    problem = Problems(pflego.Federation([pflego.Client(0, x, y)]), pflego.Model(nn.Identity(), 8))[0]
    phi = np.concatenate([x, np.ones((samples, 1))], axis=1)
    wanted = np.linalg.solve(phi.T @ phi / samples + DECAY * np.eye(9), phi.T @ y / samples).T
    features = problem.forward({}).features
    assert distance(solve_head(problem, features, DECAY, None)["head"], wanted) < 1e-5  # float32


def test_features_far_from_one_are_solved_too() -> None:
    """Newton's steps from far away are shortened where they would go uphill."""
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(30 * rng.normal(size=(50, 6))), torch.from_numpy(rng.integers(4, size=50))
    model = pflego.Model(nn.Linear(6, 6, dtype=torch.float64), 6)
    problem = Problems(pflego.Federation([pflego.Client(0, x, y)]), model)[0]
    phi = torch.cat([x, torch.ones(50, 1, dtype=torch.float64)], dim=1).numpy()
    for size in (0.0, 5.0):
        anchor = size * rng.normal(size=(4, 7))
        W = solve_head(problem, x, 1e-3, {"head": torch.from_numpy(anchor)})["head"].numpy()
        z = phi @ W.T
        chances = np.exp(z - z.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        slope = (chances - np.eye(4)[y]).T @ phi / 50 + 1e-3 * (W - anchor)
        assert np.linalg.norm(slope) < 1e-8


@both_tasks
@both_heads
def test_what_is_sent_is_the_gradient_of_the_minimum(regression: bool, common: bool) -> None:
    """The envelope theorem, by finite differences of P in some entries of theta and W_0."""
    twin = world(regression=regression)
    W_0, _ = anchors(twin, common)
    algorithm = solving(common_head=common, head_decay=DECAY)
    shared = {**twin.model.weights(), **({"head": torch.from_numpy(W_0)} if common else {})}
    sent: dict[str, torch.Tensor] = {}
    problems = Problems(twin.federation, twin.model)
    for i, a in enumerate(twin.alphas):
        update = algorithm.client_update(Round(1, alpha=a), shared, {}, problems[i])
        assert update.state == {}
        for name, tensor in update.contribution.items():
            sent[name] = sent.get(name, torch.zeros(())) + a * tensor
    h = 1e-4
    arrays = {"0.weight": twin.net.V, "0.bias": twin.net.v, **({"head": W_0} if common else {})}
    assert sent.keys() == arrays.keys()
    rng = np.random.default_rng(1)
    for name, array in arrays.items():
        for place in rng.permutation(list(np.ndindex(array.shape)))[:2]:
            entry = tuple(place)
            values = []
            for move in (h, -2 * h):
                array[entry] += move
                at = [W_0[twin.rows(i)] if common else np.zeros_like(twin.heads[i]) for i in range(5)]
                values.append(envelope(twin, at))
            array[entry] += h
            assert float(sent[name][entry]) == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-6)


def test_a_group_sends_the_sum_of_what_each_would_send() -> None:
    twin = world()
    algorithm, shared = solving(head_decay=DECAY), twin.model.weights()
    problems, weights = [Problems(twin.federation, twin.model)[i] for i in range(3)], [0.5, 2.0, 0.1]
    _, summed = algorithm.group_update([Round(1)] * 3, shared, [{}] * 3, problems, weights)
    alone = [algorithm.client_update(Round(1), shared, {}, problem) for problem in problems]
    for name, tensor in summed.items():
        wanted = sum(w * u.contribution[name].numpy() for w, u in zip(weights, alone, strict=True))
        assert distance(tensor, np.asarray(wanted)) < 1e-8


def test_a_round_is_a_step_on_the_minimum() -> None:
    """With everyone and SGD: theta less rho times P's gradient, held to heads from SciPy."""
    twin = world()
    algorithm = solving(head_decay=DECAY, server_lr=0.3, server_optimizer="sgd")
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=3)
    for _ in range(3):
        parts = [
            gradients(twin.net, minimised(twin, i, np.zeros_like(twin.heads[i]))[0], site)
            for i, site in enumerate(twin.sites)
        ]
        twin.net.V = twin.net.V - 0.3 * sum(a * g[0] for a, g in zip(twin.alphas, parts, strict=True))
        twin.net.v = twin.net.v - 0.3 * sum(a * g[1] for a, g in zip(twin.alphas, parts, strict=True))
    assert distance(run.shared["0.weight"], twin.net.V) < 1e-7
    assert distance(run.shared["0.bias"], twin.net.v) < 1e-7
    assert [(row["forward_passes"], row["backward_passes"]) for row in run.history] == [(1, 1)] * 3


@both_heads
def test_clients_keep_nothing_and_everyone_is_adapted(common: bool) -> None:
    twin = world()
    run = pflego.train(twin.federation, twin.model, solving(common_head=common), rounds=3, participation=2)
    assert all(run.states[id] == {} for id in twin.federation.ids)
    assert run.evaluate() == run.evaluate(adapt=True)
    assert run.personal_model("c1").predict(twin.federation[1].x_test).shape == (4,)


@both_heads
def test_the_automatic_server_rate_lowers_the_minimum(common: bool) -> None:
    """P's curvature is at most that of theta's own block (and W_0's), which is what is measured."""
    twin = world()
    values: list[float] = []

    class Watch(pflego.Callback):
        def on_round(self, run: pflego.Run, row: object) -> None:
            twin.net.V, twin.net.v = run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy()
            W_0 = run.shared["head"].numpy() if common else np.zeros((6, 5))
            values.append(envelope(twin, [W_0[twin.rows(i)] for i in range(5)]))

    algorithm = solving(common_head=common, head_decay=DECAY, server_lr="auto", server_optimizer="sgd")
    pflego.train(twin.federation, twin.model, algorithm, rounds=5, callbacks=[Watch()])
    assert all(later <= earlier for earlier, later in pairwise(values))
    assert values[-1] < 0.99 * values[0]


def test_solving_needs_a_decay_and_linear_heads() -> None:
    with pytest.raises(pflego.SettingError, match="head_decay"):
        solving(head_decay=0.0)
    assert (solving().head_decay, solving(common_head=True).head_decay) == (0.01, 0.1)
    twin = world()
    model = pflego.Model(twin.model.backbone, 4, head=lambda m, k: nn.Sequential(nn.Linear(m, k)))
    with pytest.raises(pflego.UserError, match="linear"):
        pflego.train(twin.federation, model, solving(), rounds=1)
