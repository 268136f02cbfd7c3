"""Weights of samples in a client's problem: losses, gradients, smoothness and solved heads against NumPy and SciPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import pflego
from pflego.learning.head_group import HeadGroup
from pflego.learning.heads import Descent
from pflego.learning.heads.solve import solve_head
from pflego.learning.problems import Problems
from pflego.learning.streaming import Streaming
from pflego.learning.task import Classification, Regression
from pflego.learning.weighted import Weighted, average
from tests.support.reference import F64, World, distance, gradients, loss, world

both_tasks = pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
CURVATURE = {False: 0.5, True: 1.0}


def heads_of(twin: World) -> list[dict[str, torch.Tensor]]:
    twin.random_heads()
    return [{"head": torch.from_numpy(W)} for W in twin.heads]


@both_tasks
@pytest.mark.parametrize("slice_size", [None, 3])
def test_loss_and_gradient_are_those_of_the_weighted_mean(regression: bool, slice_size: int | None) -> None:
    twin = world(regression=regression, weighted=True)
    problems = Problems(twin.federation, twin.model, streaming=Streaming(slice_size=slice_size))
    for i, (site, head) in enumerate(zip(twin.sites, heads_of(twin), strict=True)):
        weights = {**twin.model.weights(), **head}
        assert problems[i].loss(weights) == pytest.approx(loss(twin.net, twin.heads[i], site), rel=1e-12)
        found = problems[i].gradient(weights)
        dV, dv, dW = gradients(twin.net, twin.heads[i], site)
        for ours, theirs in [(found["0.weight"], dV), (found["0.bias"], dv), (found["head"], dW)]:
            assert distance(ours, theirs) < 1e-12


@both_tasks
def test_batches_have_the_whole_gradient_on_average(regression: bool) -> None:
    twin = world(regression=regression, weighted=True)
    problem = Problems(twin.federation, twin.model)[0]
    weights = {**twin.model.weights(), **heads_of(twin)[0]}
    parts = [problem.gradient(weights, torch.tensor([row]))["head"] for row in range(problem.samples)]
    assert distance(torch.stack(parts).mean(dim=0), problem.gradient(weights)["head"].numpy()) < 1e-12


def test_weights_have_mean_one_whatever_their_size() -> None:
    x, y, s = np.zeros((4, 2)), np.array([0, 1, 0, 1]), np.array([1.0, 0.0, 2.0, 5.0])
    for scale in (1e-200, 1.0, 1e200):
        federation = pflego.Federation([pflego.Client("a", x, y, weights=s * scale)])
        model = pflego.Model(nn.Linear(2, 3), features=3)
        each = Problems(federation, model)[0].weights
        assert each is not None
        assert each.tolist() == pytest.approx((s / 2).tolist())


@both_tasks
@pytest.mark.parametrize("together", [False, True], ids=["alone", "side by side"])
def test_smoothness_is_that_of_the_weighted_loss(regression: bool, together: bool) -> None:
    twin = world(regression=regression, weighted=True)
    problems = Problems(twin.federation, twin.model)
    everybody = [problems[i] for i in range(5)]
    phis = [torch.from_numpy(twin.net.phi(site.x)) for site in twin.sites]
    heads = heads_of(twin)
    if together:
        found = HeadGroup(everybody, torch.cat(phis)).smoothness(heads)
    else:
        found = [p.head_smoothness(head, phi) for p, head, phi in zip(everybody, heads, phis, strict=True)]
    for site, ours in zip(twin.sites, found, strict=True):
        phi = np.concatenate([twin.net.phi(site.x), np.ones((site.n, 1))], axis=1)
        assert site.s is not None
        largest = (
            CURVATURE[regression] * np.linalg.eigvalsh(phi.T @ (site.s[:, None] * phi) / site.s.sum())[-1]
        )
        assert 0.9 * largest < ours <= largest * (1 + 1e-9)  # twelve steps of the power method


@both_tasks
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_heads_in_a_group_are_those_of_each_alone(regression: bool, dtype: torch.dtype) -> None:
    twin = world(regression=regression, weighted=True, dtype=dtype)
    problems = [Problems(twin.federation, twin.model)[i] for i in range(5)]
    phis = [torch.from_numpy(twin.net.phi(site.x)).to(dtype) for site in twin.sites]
    heads = [{"head": head["head"].to(dtype)} for head in heads_of(twin)]
    group, close = HeadGroup(problems, torch.cat(phis)), 1e-5 if dtype == torch.float32 else 1e-12
    descent = Descent(0.1, decay=0.2)
    for i, (stepped, gradient, value) in enumerate(
        zip(group.descend(heads, 3, [descent] * 5), group.gradient(heads), group.loss(heads), strict=True)
    ):
        W = twin.heads[i].copy()
        assert value == pytest.approx(loss(twin.net, W, twin.sites[i]), rel=close)
        assert float(gradient.loss) == pytest.approx(value, rel=close)
        assert distance(gradient.head["head"], gradients(twin.net, W, twin.sites[i])[2]) < close
        for _ in range(3):
            W -= 0.1 * (gradients(twin.net, W, twin.sites[i])[2] + 0.2 * W)
        alone = problems[i].head_steps(heads[i], phis[i], 3, descent)
        assert distance(stepped["head"], W) < close
        assert distance(alone["head"], W) < close


@both_tasks
@pytest.mark.parametrize("few", [False, True], ids=["many samples", "fewer than features"])
def test_solved_heads_are_at_the_minimum(regression: bool, few: bool) -> None:
    twin = world(regression=regression, weighted=True)
    problem, site = Problems(twin.federation, twin.model)[2], twin.sites[2]
    if few:
        rows = np.array([1, 2, 3])
        problem, site = problem.part(torch.from_numpy(rows)), site.part(rows)
    at = np.random.default_rng(2).normal(size=twin.heads[2].shape)

    def objective(flat: F64) -> tuple[float, F64]:
        W = flat.reshape(at.shape)
        slope = gradients(twin.net, W, site)[2] + 0.05 * (W - at)
        return loss(twin.net, W, site) + 0.025 * float(((W - at) ** 2).sum()), slope.ravel()

    best = minimize(objective, at.ravel(), jac=True, method="BFGS", options={"gtol": 1e-10})
    phi = torch.from_numpy(twin.net.phi(site.x))
    found = solve_head(problem, phi, 0.05, {"head": torch.from_numpy(at)})["head"]
    assert distance(found, best.x.reshape(at.shape)) < 1e-7


@both_tasks
def test_any_module_as_a_head(regression: bool) -> None:
    twin = world(regression=regression, weighted=True)

    def head(features: int, outputs: int) -> nn.Module:
        return nn.Linear(features, outputs)

    model = pflego.Model(twin.model.backbone, features=4, head=head)
    problem = Problems(twin.federation, model)[1]
    W = np.random.default_rng(3).normal(size=twin.heads[1].shape)
    weights = {"head.weight": torch.from_numpy(W[:, :-1]), "head.bias": torch.from_numpy(W[:, -1])}
    features = torch.from_numpy(twin.net.phi(twin.sites[1].x))
    assert problem.head_loss(weights, features) == pytest.approx(loss(twin.net, W, twin.sites[1]), rel=1e-12)
    found = problem.head_gradient(weights, features).head
    assert distance(found["head.weight"], gradients(twin.net, W, twin.sites[1])[2][:, :-1]) < 1e-12


@both_tasks
def test_tests_count_every_sample_alike(regression: bool) -> None:
    plain, weighted = world(regression=regression), world(regression=regression, weighted=True)
    scores = []
    for twin in (plain, weighted):
        problem = Problems(twin.federation, twin.model)[3]
        model = {**twin.model.weights(), **heads_of(twin)[3]}
        scores += [(problem.test(model), problem.test_on_training_data(model))]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("task", [Classification(), Regression(unit=2.0)], ids=str)
def test_a_weighted_task_is_judged_as_the_task_itself(task: Classification | Regression) -> None:
    weighted = Weighted(task)
    assert (weighted.metric, weighted.higher_is_better, weighted.curvature) == (
        task.metric,
        task.higher_is_better,
        task.curvature,
    )
    assert weighted.metric_value(0.25) == task.metric_value(0.25)
    z, t = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    carried = torch.cat([t, torch.tensor([[0.5], [1.5]])], dim=1)
    assert torch.equal(weighted.scores(z, carried), task.scores(z, t))
    assert weighted.known(carried) == task.known(t)


def test_a_client_without_weights_beside_one_that_has_them_counts_by_its_samples() -> None:
    twin = world()
    first, *others = twin.federation
    weighted = pflego.Client(first.id, first.x_train, first.y_train, weights=np.full(len(first.y_train), 3.0))
    federation = pflego.Federation([weighted, *others])
    assert federation.weighted
    assert federation.masses.tolist() == [21.0, 12.0, 17.0, 22.0, 27.0]
    own = Problems(federation, twin.model)[1].weights
    assert own is not None
    assert own.tolist() == [1.0] * 12


def test_a_federation_without_weights_knows_no_weighted_task() -> None:
    twin = world(dtype=torch.float32)
    problem = Problems(twin.federation, twin.model)[0]
    assert isinstance(problem.task, Classification)
    assert problem.weights is None
    assert problem.targets.shape == (7, 2)
    assert twin.federation.masses is twin.federation.sizes


def test_averages() -> None:
    values, each = torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([0.5, 1.5])
    assert average(values, each).tolist() == [2.5, 5.0]
    assert average(values, None).tolist() == [2.0, 4.0]


def test_behind_a_trunk_weights_stay() -> None:
    twin = world(weighted=True)
    backbone = nn.Sequential(nn.Linear(6, 5, dtype=torch.float64), *twin.model.backbone.children())
    backbone[1] = nn.Linear(5, 4, dtype=torch.float64)
    backbone[0].requires_grad_(False)
    model = pflego.Model(backbone, features=4)
    behind = Problems(twin.federation, model)
    whole = replace(behind, streaming=Streaming(trunk="always"))
    weights = {**model.weights(), **heads_of(twin)[2]}
    assert behind.trunk is not None
    assert behind[2].loss(weights) == pytest.approx(whole[2].loss(weights), rel=1e-12)
