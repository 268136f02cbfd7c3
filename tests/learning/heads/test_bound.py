"""Steps with the mean of the features taken out: against NumPy in float64, and downhill wherever they start."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pflego
from pflego.learning.head_group import HeadGroup
from pflego.learning.heads import HEAD, Descent, HessianBound, LinearHead, ModuleHead, plain_loops
from pflego.learning.heads.bound import bound_of_features
from pflego.learning.problems import Problems
from pflego.learning.task import Classification, Regression, Task
from pflego.learning.weighted import Weighted
from tests.support.reference import F64, distance, gradients, link, world

both_tasks = pytest.mark.parametrize("task", [Classification(), Regression()], ids=["softmax", "squares"])


def some_features(n: int = 40, m: int = 6, *, offset: float = 3.0, seed: int = 0) -> F64:
    """Features as after a rectifier: far from zero compared with how they differ."""
    rng = np.random.default_rng(seed)
    return offset + rng.normal(size=(n, m)) * np.logspace(0, -2, m)


def with_ones(features: F64) -> F64:
    return np.hstack([features, np.ones((len(features), 1))])


def exact_bound(features: F64, c: float, weights: F64 | None = None) -> F64:
    """c lambda_max(C) I + c m m^T, by NumPy's eigenvalues; of lambda_max at least a hundredth of |m|^2."""
    phi = with_ones(features)
    each = np.ones(len(phi)) if weights is None else weights
    mean = each @ phi / len(phi)
    spread = (phi - mean).T @ np.diag(each) @ (phi - mean) / len(phi)
    largest = max(np.linalg.eigvalsh(spread)[-1], mean @ mean / 100)
    return np.asarray(c * (largest * np.eye(phi.shape[1]) + np.outer(mean, mean)))


def as_matrix(bound: HessianBound) -> F64:
    assert bound.mean is not None
    mean = bound.mean.double().numpy()
    return np.asarray(bound.constant * np.eye(len(mean)) + bound.weight * np.outer(mean, mean))


def hessian(features: F64, W: F64, t: F64, c: float, weights: F64) -> F64:
    """Of the loss in a whole head, row after row: sum_j w_j (dz_j) x phi_j phi_j^T / n."""
    phi = with_ones(features)
    total = np.zeros((W.size, W.size))
    for row, weight in zip(phi, weights, strict=True):
        p = link((W @ row)[None], c == 0.5)[0]
        inner = np.diag(p) - np.outer(p, p) if c == 0.5 else np.eye(len(p))
        total += weight * np.kron(inner, np.outer(row, row)) / len(phi)
    return total


@both_tasks
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "m", "offset"), [(40, 6, 3.0), (3, 5, 0.0), (200, 30, 1.0), (40, 6, 9.0)])
def test_the_bound_is_that_of_numpy(task: Task, weighted: bool, n: int, m: int, offset: float) -> None:
    features = some_features(n, m, offset=offset)
    weights = np.random.default_rng(1).uniform(0.1, 1.9, size=n)
    weights /= weights.mean()
    each = torch.from_numpy(weights) if weighted else None
    found = bound_of_features(torch.from_numpy(features), task, each)
    wanted = exact_bound(features, task.curvature, weights if weighted else None)
    least, *_, most = np.linalg.eigvalsh(wanted)  # a, and a + c |m|^2
    assert 0.9 * least < found.constant <= least * (1 + 1e-9)
    assert found.largest - found.constant == pytest.approx(most - least, rel=1e-9)
    assert np.abs(as_matrix(found) - wanted).max() < 0.1 * least


@given(seed=st.integers(0, 10**6), offset=st.floats(-20, 20), scale=st.floats(0.01, 30), k=st.integers(2, 5))
def test_no_hessian_is_above_the_bound(seed: int, offset: float, scale: float, k: int) -> None:
    """Whatever the head is; the power method may be a little below the true spread."""
    rng = np.random.default_rng(seed)
    features = some_features(12, 4, offset=offset, seed=seed)
    W, t = scale * rng.normal(size=(k, 5)), np.eye(k)[rng.integers(k, size=12)]
    weights = rng.uniform(0, 2, size=12)
    weights /= weights.mean()
    bound = bound_of_features(torch.from_numpy(features), Classification(), torch.from_numpy(weights))
    above = np.kron(np.eye(k), 1.2 * as_matrix(bound)) - hessian(features, W, t, 0.5, weights)
    assert np.linalg.eigvalsh(above)[0] >= -1e-9 * bound.largest


@both_tasks
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_step_is_one_along_the_inverse_of_the_bound(
    task: Task, decay: float, momentum: bool, dtype: torch.dtype
) -> None:
    """W <- W - (grad + decay (W - A)) (H + decay I)^-1, solved for by NumPy."""
    rng, features = np.random.default_rng(2), some_features()
    W, A = rng.normal(size=(3, 7)), rng.normal(size=(3, 7))
    t = np.eye(3)[rng.integers(3, size=40)] if task.curvature == 0.5 else rng.normal(size=(40, 3))
    phi, targets = torch.tensor(features, dtype=dtype), torch.tensor(t, dtype=dtype)
    start, head = {HEAD: torch.tensor(W, dtype=dtype)}, LinearHead(6, 3)
    bound = head.hessian_bound(start, phi, targets, task)
    descent = replace(
        bound.descent(decay, {HEAD: torch.tensor(A, dtype=dtype)}),
        rule="momentum" if momentum else "gd",
        momentum=0.5,
    )
    H = as_matrix(bound) + decay * np.eye(7)
    velocity, rows = np.zeros_like(W), with_ones(features)
    for _ in range(6):
        gradient = (link(rows @ W.T, task.curvature == 0.5) - t).T @ rows / 40 + decay * (W - A)
        velocity = 0.5 * momentum * velocity + np.linalg.solve(H, gradient.T).T
        W = W - velocity
    accuracy = 1e-9 if dtype == torch.float64 else 1e-3
    assert distance(head.descend(start, phi, targets, task, 6, descent)[HEAD], W) < accuracy
    with plain_loops():
        assert distance(head.descend(start, phi, targets, task, 6, descent)[HEAD], W) < accuracy


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("offset", [0.0, 3.0, 300.0])
def test_every_step_goes_downhill_and_no_less_far_than_one_over_l(scale: float, offset: float) -> None:
    features = torch.from_numpy(some_features(60, 8, offset=offset)).float()
    rng = np.random.default_rng(4)
    task, head = Classification(), LinearHead(8, 3)
    targets = torch.eye(3)[torch.from_numpy(rng.integers(3, size=60))]
    first = {HEAD: torch.tensor(scale * rng.normal(size=(3, 9)), dtype=torch.float32)}
    bound = head.hessian_bound(first, features, targets, task)
    centred = bound.descent()
    losses, weights = [head.loss(first, features, targets, task)], first
    for _ in range(30):
        weights = head.descend(weights, features, targets, task, 1, centred)
        losses.append(head.loss(weights, features, targets, task))
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(losses))
    plain = Descent(1 / head.smoothness(first, features, targets, task))
    by_plain = head.loss(head.descend(first, features, targets, task, 30, plain), features, targets, task)
    assert losses[-1] <= 1.01 * by_plain


@both_tasks
def test_samples_that_are_all_alike_move_the_head_along_their_mean(task: Task) -> None:
    """There is no spread: a rate of 1 / (1.01 c |m|^2) is what is left, and nothing is divided by 0."""
    features, targets = torch.full((5, 4), 2.0), torch.eye(3)[[0, 1, 2, 0, 1]]
    bound = LinearHead(4, 3).hessian_bound({HEAD: torch.zeros(3, 5)}, features, targets, task)
    size = task.curvature * 17
    assert bound.constant == pytest.approx(0.01 * size)
    start = {HEAD: torch.zeros(3, 5)}
    moved = LinearHead(4, 3).descend(start, features, targets, task, 1, bound.descent())[HEAD]
    residual = (1 / 3 if task.curvature == 0.5 else 0) - targets.mean(dim=0)
    wanted = -residual[:, None] * torch.tensor([2.0, 2, 2, 2, 1]) / (1.01 * size)
    torch.testing.assert_close(moved, wanted)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_company_bounds_and_steps_are_those_of_each_alone(
    weighted: bool, decay: float, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(3)
    clients = [
        pflego.Client(
            i,
            rng.normal(size=(n, 4)),
            np.arange(n) % k,
            weights=rng.uniform(0.5, 2, size=n) if weighted else None,
        )
        for i, (n, k) in enumerate([(1, 2), (20, 3), (33, 5), (17, 3), (8, 2)])
    ]
    federation = pflego.Federation(clients)
    problems = Problems(federation, pflego.Model(nn.Linear(4, 7).to(dtype), features=7))
    problems_list = [problems[place] for place in range(len(clients))]
    features = 2 + torch.from_numpy(rng.normal(size=(79, 7))).to(dtype)
    heads = [{HEAD: torch.from_numpy(rng.normal(size=(p.outputs, 8))).to(dtype)} for p in problems_list]
    group = HeadGroup(problems_list, features)
    bounds = group.hessian_bounds(heads)
    descents = [bound.descent(decay) for bound in bounds]
    stepped = group.descend(heads, 9, descents)
    tolerance = 2e-4 if dtype == torch.float32 else 1e-9
    for place, problem in enumerate(problems_list):
        alone = problem.head_bound(heads[place], group.parts[place])
        assert bounds[place].constant == pytest.approx(alone.constant, rel=1e-4)
        assert bounds[place].mean is not None
        assert alone.mean is not None
        torch.testing.assert_close(bounds[place].mean, alone.mean)
        own = problem.head_steps(heads[place], group.parts[place], 9, descents[place])
        torch.testing.assert_close(stepped[place][HEAD], own[HEAD], rtol=tolerance, atol=tolerance)


def test_a_module_has_its_largest_curvature_and_no_mean() -> None:
    head = ModuleHead(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    weights = head.init("layer", torch.Generator().manual_seed(0), torch.float64)
    features, targets = (
        torch.randn(9, 4, dtype=torch.float64),
        torch.eye(2, dtype=torch.float64)[[0, 1] * 4 + [0]],
    )
    bound = head.hessian_bound(weights, features, targets, Classification())
    assert bound.mean is None
    assert bound.largest == head.smoothness(weights, features, targets, Classification())
    assert bound.descent(0.5).share == 0


@pytest.mark.parametrize("regression", [False, True], ids=["softmax", "squares"])
@pytest.mark.parametrize("kind", [pflego.PFLEGO, pflego.FedRecon])
def test_clients_take_centred_steps_unless_told_otherwise(kind: type, regression: bool) -> None:
    """Both methods fit heads to features; PFLEGO's last step waits for the joint one."""
    twin = world(regression=regression)
    algorithm = kind(steps=4)
    assert algorithm.client_lr == "centred"
    shared, c = twin.model.weights(), 1.0 if regression else 0.5
    for i, site in enumerate(twin.sites):
        problem = Problems(twin.federation, twin.model)[i]
        features = twin.net.phi(site.x)
        H = as_matrix(bound_of_features(torch.from_numpy(features), problem.task))
        assert np.abs(H - exact_bound(features, c)).max() < 0.02 * np.linalg.norm(H, 2)
        W = np.zeros_like(twin.heads[i])
        for _ in range(4 if kind is pflego.FedRecon else 3):
            W = W - np.linalg.solve(H, gradients(twin.net, W, site)[2].T).T
        start = algorithm.init_state(problem, 0)
        assert distance(algorithm.adapt(shared, start, problem)[HEAD], W) < 1e-9


def test_weights_of_samples_count_in_mean_and_spread() -> None:
    """A sample of weight 2 beside one of weight 0 is two samples."""
    features = torch.tensor([[1.0, 4.0], [2.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 0, 2], [0, 1, 1], [1, 0, 0]], dtype=torch.float64)
    head = LinearHead(2, 2)
    found = head.hessian_bound(
        {HEAD: torch.zeros(2, 3, dtype=torch.float64)}, features, targets, Weighted(Classification())
    )
    twice = bound_of_features(features[[0, 0, 1]], Classification())
    assert found.mean is not None
    assert twice.mean is not None
    torch.testing.assert_close(found.mean, twice.mean)
    assert found.constant == pytest.approx(twice.constant, rel=1e-6)
