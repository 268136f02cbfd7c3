"""Head steps by momentum and Adam are held to the paper's condition: not above the loss they began with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pflego
from pflego.exchange.round import Round
from pflego.learning.problems import Problems
from pflego.weights import Weights
from tests.support.reference import F64, Adam, Net, Site, World, distance, gradients, loss, world

both_rules = pytest.mark.parametrize("rule", ["momentum", "adam"])
both_tasks = pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])


def algorithm(rule: str, rate: float, *, tau: int = 20, **options: object) -> pflego.PFLEGO:
    return pflego.PFLEGO(steps=tau, client_lr=rate, head_optimizer=rule, **options)  # type: ignore[arg-type]


def plain_steps(net: Net, W: F64, site: Site, *, rule: str, rate: float, count: int) -> F64:
    adam, velocity = Adam(rate), np.zeros_like(W)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(count):
            g = gradients(net, W, site)[2]
            velocity = 0.9 * velocity + g
            W = adam.step(W, g) if rule == "adam" else W - rate * velocity
    return W


def guarded_steps(
    net: Net, W: F64, site: Site, *, rule: str, rate: float, count: int
) -> tuple[F64, float | None]:
    """The first of rate, rate/10 and rate/100 that does not end uphill; or the old head, and None."""
    before = loss(net, W, site)
    for tried in (rate, rate / 10, rate / 100):
        stepped = plain_steps(net, W, site, rule=rule, rate=tried, count=count)
        with np.errstate(over="ignore", invalid="ignore"):
            after = loss(net, stepped, site)
        if after <= before:
            return stepped, tried
    return W, None


def adapted(twin: World, method: pflego.PFLEGO) -> list[F64]:
    """Every client's head after tau - 1 steps."""
    problems, shared = Problems(twin.federation, twin.model), twin.model.weights()
    found = []
    for i, W in enumerate(twin.heads):
        state: Weights = {"head": torch.from_numpy(W)}
        found.append(method.adapt(shared, state, problems[i])["head"].numpy())
    return found


@both_rules
@both_tasks
@pytest.mark.parametrize("size", [0.0, 1.0])
def test_sane_rates_need_no_help(size: float, regression: bool, rule: str) -> None:
    twin = world(regression=regression)
    twin.random_heads(size)
    rate = {"momentum": 0.05, "adam": 0.005}[rule]
    for W, after, site in zip(twin.heads, adapted(twin, algorithm(rule, rate)), twin.sites, strict=True):
        assert loss(twin.net, after, site) < loss(twin.net, W, site)
        wanted = plain_steps(twin.net, W, site, rule=rule, rate=rate, count=19)
        assert np.linalg.norm(after - wanted) < 1e-10 * np.linalg.norm(wanted)
    run = pflego.train(twin.federation, twin.model, algorithm(rule, rate), rounds=5)
    assert [row["fallbacks"] for row in run.history] == [0] * 5


@both_rules
@both_tasks
@pytest.mark.parametrize("rate", [0.3, 10.0, 100.0, 1e3, 1e30])
def test_no_rate_leads_uphill(rate: float, regression: bool, rule: str) -> None:
    twin = world(regression=regression)
    twin.random_heads(1.0)
    for W, after, site in zip(twin.heads, adapted(twin, algorithm(rule, rate)), twin.sites, strict=True):
        assert loss(twin.net, after, site) <= loss(twin.net, W, site)
        wanted, _ = guarded_steps(twin.net, W, site, rule=rule, rate=rate, count=19)
        assert np.linalg.norm(after - wanted) < 1e-8 * np.linalg.norm(wanted)


@pytest.mark.parametrize("rate", [10.0, 100.0, 1e3])
def test_fallbacks_are_counted_in_the_history(rate: float) -> None:
    twin = world(regression=True)
    run = pflego.train(twin.federation, twin.model, algorithm("adam", rate), rounds=1, participation=3)
    chosen = [i for i in range(5) if not torch.equal(run.states[f"c{i}"]["head"], torch.zeros(1, 5))]
    used = [
        guarded_steps(twin.net, twin.heads[i], twin.sites[i], rule="adam", rate=rate, count=19)[1]
        for i in chosen
    ]
    assert len(chosen) == 3
    assert run.history[0]["fallbacks"] == sum(tried != rate for tried in used) > 0


def test_these_rates_reach_every_case() -> None:
    """No fallback, one, two, and the old head."""
    twin = world(regression=True)
    site, W = twin.sites[2], twin.heads[2]
    used = [
        guarded_steps(twin.net, W, site, rule="adam", rate=rate, count=19)[1]
        for rate in (0.02, 10.0, 100.0, 1e3)
    ]
    assert used == [0.02, 1.0, 1.0, None]


@both_rules
def test_the_last_resort_is_the_old_head(rule: str) -> None:
    twin = world(regression=True)
    twin.random_heads(0.1)
    for W, after in zip(twin.heads, adapted(twin, algorithm(rule, 1e3)), strict=True):
        assert np.array_equal(W, after)


@both_rules
def test_with_the_old_head_the_joint_step_goes_on_as_ever(rule: str) -> None:
    twin = world(regression=True)
    twin.random_heads(0.1)
    method = algorithm(rule, 1e3, server_lr=0.05, server_optimizer="sgd")
    for i, (W, site) in enumerate(zip(twin.heads, twin.sites, strict=True)):
        problem = Problems(twin.federation, twin.model)[i]
        update = method.client_update(Round(1), twin.model.weights(), {"head": torch.from_numpy(W)}, problem)
        dV, dv, dW = gradients(twin.net, W, site)
        assert update.metrics["fallbacks"].value == 1
        assert distance(update.state["head"], W - 0.05 * dW) < 1e-12
        assert distance(update.contribution["0.weight"], dV) < 1e-12
        assert distance(update.contribution["0.bias"], dv) < 1e-12


def test_the_safeguard_holds_over_a_whole_run() -> None:
    """No client ever ends its head steps above where it began, whatever the absurd rate."""
    twin = world(regression=True)
    method = algorithm("adam", 1e3, server_lr=0.01, server_optimizer="sgd")
    run = pflego.train(twin.federation, twin.model, method, rounds=10)
    assert [row["fallbacks"] for row in run.history] == [5] * 10
    losses = [row["loss"] or 0.0 for row in run.history]
    assert losses == sorted(losses, reverse=True)


def test_gradient_descent_is_left_to_its_rate() -> None:
    """Proposition 2's bound is a warning there, not a safeguard: uphill it goes."""
    twin = world(regression=True)
    twin.random_heads(0.1)
    after = adapted(twin, algorithm("gd", 1.5))
    for W, stepped, site in zip(twin.heads, after, twin.sites, strict=True):
        wanted = W
        for _ in range(19):
            wanted = wanted - 1.5 * gradients(twin.net, wanted, site)[2]
        assert np.linalg.norm(stepped - wanted) < 1e-10 * np.linalg.norm(wanted)
    assert any(
        loss(twin.net, stepped, site) > loss(twin.net, W, site)
        for W, stepped, site in zip(twin.heads, after, twin.sites, strict=True)
    )


@both_rules
def test_the_safeguard_costs_no_pass_over_the_backbone(rule: str) -> None:
    twin = world(regression=True)
    run = pflego.train(twin.federation, twin.model, algorithm(rule, 1e3), rounds=2)
    assert [(row["forward_passes"], row["backward_passes"]) for row in run.history] == [(1, 1)] * 2


@both_rules
def test_the_safeguard_looks_at_the_loss_that_the_steps_descend(rule: str) -> None:
    """From the best head without a decay, steps with one raise the bare loss and lower their own."""
    twin = world(regression=True)
    decay, rate = 0.5, {"momentum": 0.02, "adam": 0.002}[rule]
    method = algorithm(rule, rate, head_decay=decay)
    for i, site in enumerate(twin.sites):
        phi = np.concatenate([twin.net.phi(site.x), np.ones((site.n, 1))], axis=1)
        W = np.linalg.lstsq(phi, site.t, rcond=None)[0].T
        problem = Problems(twin.federation, twin.model)[i]
        update = method.client_update(Round(1), twin.model.weights(), {"head": torch.from_numpy(W)}, problem)
        stepped = method.adapt(twin.model.weights(), {"head": torch.from_numpy(W)}, problem)["head"].numpy()
        assert update.metrics["fallbacks"].value == 0
        assert loss(twin.net, stepped, site) > loss(twin.net, W, site)
        assert loss(twin.net, stepped, site) + decay / 2 * (stepped**2).sum() < (
            loss(twin.net, W, site) + decay / 2 * (W**2).sum()
        )


def test_momentum_beside_a_common_head_is_not_refused() -> None:
    federation = pflego.load("digits", clients=10, classes_per_client=5)
    model = pflego.models.build("mlp", (64,))
    method = pflego.PFLEGO(head_optimizer="momentum", common_head=True, steps=20, momentum=0.5)
    run = pflego.train(federation, model, method, rounds=10)
    assert sum(int(row["fallbacks"] or 0) for row in run.history) < 10  # of 100
