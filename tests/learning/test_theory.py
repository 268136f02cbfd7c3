from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pflego
from pflego.learning import theory
from pflego.learning.heads import Descent, LinearHead
from pflego.learning.problems import Problems
from pflego.learning.task import Classification, Regression, Task
from pflego.training.loop import RateWarning
from tests.support.reference import F64, Site, World, gradients, loss, world


def exact_smoothness(features: F64, curvature: float) -> float:
    phi = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    return float(curvature * np.linalg.eigvalsh(phi.T @ phi / len(phi))[-1])


@pytest.mark.parametrize(("task", "curvature"), [(Classification(), 0.5), (Regression(), 1.0)])
@pytest.mark.parametrize("shape", [(600, 200), (5, 200), (1, 3)])
def test_the_head_constant_is_the_largest_eigenvalue(
    task: Task, curvature: float, shape: tuple[int, int]
) -> None:
    features = np.abs(np.random.default_rng(0).normal(size=shape))
    estimate = theory.head_smoothness(torch.from_numpy(features), task)
    assert estimate == pytest.approx(exact_smoothness(features, curvature), rel=1e-6)


def test_on_an_orthogonal_design_the_constant_is_known() -> None:
    """Columns of +-3, orthogonal to each other and to the ones: Phi^T Phi / n = diag(9, 9, 1)."""
    features = 3.0 * torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    assert theory.head_smoothness(features, Regression()) == pytest.approx(9, rel=1e-6)
    assert theory.head_smoothness(features, Classification()) == pytest.approx(4.5, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 30),
    width=st.integers(1, 12),
    classes=st.integers(1, 5),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    shift=st.sampled_from([0.0, 5.0]),
    seed=st.integers(0, 2**32 - 1),
    regression=st.booleans(),
)
def test_every_step_of_the_automatic_rate_goes_downhill(
    n: int, width: int, classes: int, scale: float, shift: float, seed: int, regression: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    features = scale * draw(n, width) + shift
    task: Task = Regression() if regression else Classification()
    labels = torch.randint(classes, (n,), generator=generator)
    targets = draw(n, classes) if regression else torch.nn.functional.one_hot(labels, classes).double()
    head = LinearHead(width, classes)
    weights = {"head": draw(classes, width + 1)}
    rate = 1 / head.smoothness(weights, features, targets, task)
    before = float(task.loss(head.outputs(weights, features), targets))
    for _ in range(10):
        weights = head.descend(weights, features, targets, task, 1, Descent(rate))
        after = float(task.loss(head.outputs(weights, features), targets))
        assert after <= before + 1e-12 * max(1, before)
        before = after


def test_far_above_the_bound_the_loss_rises() -> None:
    """Squared error with L = 9: a rate of 3/9 multiplies the distance along the steepest direction by -2 a step."""
    features = 3.0 * torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    targets = torch.tensor([[1.0], [-2], [0], [3]], dtype=torch.float64)
    head, weights, task = LinearHead(2, 1), {"head": torch.zeros(1, 3, dtype=torch.float64)}, Regression()

    def loss_after(rate: float) -> float:
        return float(
            task.loss(
                head.outputs(head.descend(weights, features, targets, task, 6, Descent(rate)), features),
                targets,
            )
        )

    start = float(task.loss(head.outputs(weights, features), targets))
    assert loss_after(theory.client_bound(9) * 0.99) < start < loss_after(3 / 9)


def test_the_backbone_constant_is_the_hessians_largest_eigenvalue() -> None:
    twin = world(clients=1)
    rng = np.random.default_rng(3)
    W, site, net = rng.normal(size=twin.heads[0].shape), twin.sites[0], twin.net

    def gradient(flat: F64) -> F64:
        net.V, net.v = flat[:24].reshape(4, 6), flat[24:]
        dV, dv, _ = gradients(net, W, site)
        return np.concatenate([dV.ravel(), dv])

    point = np.concatenate([net.V.ravel(), net.v])
    step = 1e-5
    hessian = np.stack(
        [(gradient(point + step * e) - gradient(point - step * e)) / (2 * step) for e in np.eye(28)]
    )
    problem = Problems(twin.federation, twin.model)[0]
    weights = {**twin.model.weights(), "head": torch.from_numpy(W)}
    estimate = problem.backbone_smoothness(weights, iterations=200)
    assert estimate == pytest.approx(np.abs(np.linalg.eigvalsh(hessian)).max(), rel=1e-5)
    assert (problem.forward_passes, problem.backward_passes) == (200, 200)


def test_bounds_and_schedule_of_the_theory() -> None:
    assert theory.client_bound(4.0) == 0.5
    assert theory.server_bound(4.0, scale=100 / 20) == pytest.approx(0.1)
    assert theory.corollary_rate(2.0, expected=25, clients=100, rounds=400) == pytest.approx(0.5 * 0.5 / 20)
    assert [theory.smallest_cohort(100, t) for t in (1, 10, 25, 26)] == [26, 3, 2, 1]


def test_corollary_1_obeys_proposition_2_from_the_smallest_cohort_on() -> None:
    for clients, rounds in [(100, 5), (1000, 30), (7, 1)]:
        for r in range(1, clients + 1):
            obeys = theory.corollary_rate(
                1, expected=r, clients=clients, rounds=rounds
            ) < theory.server_bound(1, scale=clients / r)
            assert obeys == (r >= theory.smallest_cohort(clients, rounds))


def head_bounds(twin: World) -> list[float]:
    """2/L_i of every client at the first backbone."""
    return [2 / exact_smoothness(twin.net.phi(site.x), 0.5) for site in twin.sites]


def test_every_client_above_the_bound_is_counted_and_the_first_earns_a_warning() -> None:
    twin = world()
    bounds = sorted(head_bounds(twin))
    rate = (bounds[2] + bounds[3]) / 2  # above that of three clients of five
    with pytest.warns(RateWarning, match="round 1: 3 of 5 clients .* bound of Proposition 2") as caught:
        run = pflego.train(
            twin.federation, twin.model, pflego.PFLEGO(client_lr=rate, server_lr=1e-9), rounds=3
        )
    assert len(caught) == 1
    assert [row["above_bound"] for row in run.history] == [3] * 3
    assert run.history[0]["rate_over_bound"] == pytest.approx(rate / bounds[0], rel=1e-3)
    run = pflego.train(
        twin.federation, twin.model, pflego.PFLEGO(client_lr=bounds[0] * 0.99, server_lr=1e-9), rounds=3
    )
    assert [row["above_bound"] for row in run.history] == [0] * 3


def test_the_warning_comes_in_the_round_that_crosses_the_bound() -> None:
    """Not at the start, and not for the first client: the backbone grows, and the bound shrinks with it."""
    twin = world()
    rate = min(head_bounds(twin)) * 0.99
    algorithm = pflego.PFLEGO(steps=20, client_lr=rate, server_lr=0.05)
    with pytest.warns(RateWarning, match=r"round \d+: ") as caught:
        run = pflego.train(twin.federation, twin.model, algorithm, rounds=20)
    counts = [row["above_bound"] or 0 for row in run.history]
    first = next(row["round"] for row in run.history if row["above_bound"])
    assert counts[0] == 0
    assert len(caught) == 1
    assert str(caught[0].message).startswith(f"round {first}: ")


def test_the_heads_last_step_is_held_to_the_bound_too() -> None:
    """With one step there is no other: rho I/r, or rho I/r alpha_i if it is exact."""
    twin = world()
    bounds = head_bounds(twin)
    settings = {"steps": 1, "client_lr": 1e-6, "server_lr": 1.01 * max(bounds)}
    with pytest.warns(RateWarning):
        run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(**settings), rounds=1)  # type: ignore[arg-type]
    assert run.history[0]["above_bound"] == 5
    exact = pflego.PFLEGO(**settings, head_step="exact")  # type: ignore[arg-type]
    run = pflego.train(twin.federation, twin.model, exact, rounds=1)
    ratios = [a * 1.01 * max(bounds) / bound for a, bound in zip(twin.alphas, bounds, strict=True)]
    assert run.history[0]["above_bound"] == 0
    assert run.history[0]["rate_over_bound"] == pytest.approx(max(ratios), rel=1e-3)


def test_automatic_rates_are_never_above_the_bound() -> None:
    run = pflego.train(world().federation, world().model, pflego.PFLEGO(server_lr=10.0), rounds=3)
    assert [row["above_bound"] for row in run.history] == [0] * 3
    assert run.history[0]["rate_over_bound"] == pytest.approx(0.5)


def test_a_fixed_server_rate_above_the_bound_is_named_too() -> None:
    twin = world()
    algorithm = pflego.PFLEGO(steps=20, server_lr=1e3, server_optimizer="sgd")
    with pytest.warns(RateWarning, match="server_lr=1000 is above .*, the bound of Proposition 2"):
        pflego.train(twin.federation, twin.model, algorithm, rounds=1, participation=2)


class Once(torch.autograd.Function):
    """The identity, differentiable once only."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, slope: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("derivative for the backward pass is not implemented")
        return slope


def test_a_backbone_that_is_differentiable_only_once_trains() -> None:
    twin = world()

    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = twin.model.backbone

        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = Once.apply(self.inner(x))  # type: ignore[no-untyped-call]
            return features

    algorithm = pflego.PFLEGO(server_optimizer="sgd")
    run = pflego.train(twin.federation, pflego.Model(Backbone(), features=4), algorithm, rounds=2)
    plain = pflego.train(twin.federation, twin.model, algorithm, rounds=2)
    assert run.history[-1]["loss"] == plain.history[-1]["loss"]


def test_automatic_rates_are_one_over_l() -> None:
    twin = world()
    algorithm = pflego.PFLEGO(steps=4, client_lr="auto", server_lr=10.0)
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=1)
    for i, site in enumerate(twin.sites):
        rate = 1 / exact_smoothness(twin.net.phi(site.x), 0.5)  # the last step, 10, is capped at this too
        W = twin.heads[i]
        for _ in range(4):
            W = W - rate * gradients(twin.net, W, site)[2]
        assert run.states[f"c{i}"]["head"].numpy() == pytest.approx(W, rel=1e-5)


def test_automatic_rates_have_their_limits() -> None:
    with pytest.raises(pflego.UserError, match="server_optimizer='sgd'"):
        pflego.PFLEGO(server_lr="auto")
    with pytest.raises(pflego.UserError, match="no rate for Adam"):
        pflego.PFLEGO(head_optimizer="adam")


def test_reference_loss_agrees_with_its_gradient() -> None:
    """The yardstick itself, by finite differences."""
    twin = world(clients=1)
    site: Site = twin.sites[0]
    W = np.random.default_rng(0).normal(size=twin.heads[0].shape)
    dV, dv, dW = gradients(twin.net, W, site)
    h = 1e-6
    for array, slope in [(twin.net.V, dV), (twin.net.v, dv), (W, dW)]:
        for place in np.ndindex(array.shape):
            array[place] += h
            up = loss(twin.net, W, site)
            array[place] -= 2 * h
            down = loss(twin.net, W, site)
            array[place] += h
            assert (up - down) / (2 * h) == pytest.approx(slope[place], abs=1e-8)
