"""PFLEGO(passes=k): k times head steps on fresh features and a joint step at home; the sum of steps is sent."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

import pflego
from pflego.exchange.round import Round
from pflego.learning.problems import Problems
from tests.support.reference import (
    F64,
    Net,
    Visit,
    World,
    assert_follows,
    cohorts,
    distance,
    gradients,
    rounds_at_home,
    world,
)

both_heads = pytest.mark.parametrize("common", [False, True], ids=["own heads", "common head"])


def passes_of(twin: World, *, passes: int, tau: int, beta: float, eta: float, decay: float) -> Visit:
    """What a client does by the equations of several_passes.py, in NumPy."""

    def visit(t: int, i: int, net: Net, W_0: F64 | None) -> F64:
        site, rows, own = twin.sites[i], twin.rows(i), twin.heads[i]
        for _ in range(passes):
            base = 0.0 if W_0 is None else W_0[rows]
            for _ in range(tau - 1):
                own = own - beta * (gradients(net, base + own, site)[2] + decay * own)
            dV, dv, dW = gradients(net, base + own, site)
            net.V, net.v = net.V - eta * dV, net.v - eta * dv
            own = own - eta * (dW + decay * own)
            if W_0 is not None:
                W_0[rows] -= eta * dW
        return own

    return visit


@both_heads
@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adam"])
@pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
def test_rounds_follow_the_equations(common: bool, adam: bool, regression: bool) -> None:
    twin = world(regression=regression)
    if common:
        twin.common = np.zeros((twin.federation.outputs, 5))
    rho = 0.05 if adam else 0.9
    algorithm = pflego.PFLEGO(
        steps=4, client_lr=0.2, local_lr=0.1, server_lr=rho, passes=3, server_optimizer="adam" if adam else "sgd",
        common_head=common, head_decay=0.3, head_init="zeros",
    )  # fmt: skip
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=6, participation=2, seed=3)
    chosen = cohorts(pflego.Fixed(2), 5, rounds=6, seed=3)
    visit = passes_of(twin, passes=3, tau=4, beta=0.2, eta=0.1, decay=0.3)
    rounds_at_home(twin, chosen, visit, r=2, rho=rho, adam=adam)
    assert_follows(run, twin, 1e-9)
    assert [(row["forward_passes"], row["backward_passes"]) for row in run.history] == [(3, 3)] * 6


@both_heads
def test_the_automatic_rate_at_home_lowers_the_clients_loss(common: bool) -> None:
    """1/L_i of all that the step moves, to a factor of 2: with the head steps left out, every step goes downhill."""
    twin = world()
    for seed in range(5):
        rng = np.random.default_rng(seed)
        algorithm = pflego.PFLEGO(steps=1, passes=2, common_head=common, head_decay=0.0)
        shared = algorithm.init_shared(twin.model, 6, 0)
        if common:
            shared["head"] = torch.from_numpy(rng.normal(size=(6, 5)))
        for i in range(5):
            problem = Problems(twin.federation, twin.model)[i]
            state = {"head": torch.from_numpy(rng.normal(size=twin.heads[i].shape))}
            update = algorithm.client_update(Round(1), shared, state, problem)
            assert update.model is not None
            assert problem.loss(update.model) < problem.loss(algorithm.personal(shared, state, problem))
            assert 2 < problem.forward_passes < 20


def test_the_automatic_rate_at_home_never_exceeds_the_heads_bound() -> None:
    """Where a softmax is sure of itself the loss is flat, and 1/L as measured is far above what the head allows."""
    twin = world()
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=30, passes=3), rounds=15)
    assert [row["above_bound"] for row in run.history] == [0] * 15


def test_one_pass_is_the_papers_step() -> None:
    """Whatever the rate at home: nothing is done there."""
    twin = world()
    one, other = (
        pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=5, passes=1, local_lr=rate), rounds=3)
        for rate in ("auto", 5.0)
    )
    assert all(torch.equal(one.shared[name], other.shared[name]) for name in one.shared)
    assert [row["forward_passes"] for row in one.history] == [1] * 3


@both_heads
def test_participants_are_judged_with_the_model_they_have_at_home(common: bool) -> None:
    twin = world()
    algorithm = pflego.PFLEGO(
        steps=3, client_lr=0.2, local_lr=0.2, passes=4, common_head=common, head_init="zeros"
    )
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=1)
    problems, shared = Problems(twin.federation, twin.model), algorithm.init_shared(twin.model, 6, 0)
    expected = 0.0
    for i, a in enumerate(twin.alphas):
        problem = problems[i]
        update = algorithm.client_update(Round(1), shared, algorithm.init_state(problem, 0), problem)
        home = {name: shared[name] - move for name, move in update.contribution.items()}
        head = update.state["head"] + (home["head"][problem.rows] if common else 0)
        expected += a * problem.loss({**home, "head": head})
    assert run.history[0]["loss"] == pytest.approx(expected, rel=1e-12)


def test_groups_send_the_sum_of_what_each_would_send() -> None:
    twin = world()
    algorithm = pflego.PFLEGO(steps=3, client_lr=0.2, local_lr=0.2, passes=2, common_head=True)
    shared = algorithm.init_shared(twin.model, 6, 0)
    problems = [Problems(twin.federation, twin.model)[i] for i in range(3)]
    states = [algorithm.init_state(problem, 0) for problem in problems]
    weights = [0.5, 2.0, 0.1]
    updates, summed = algorithm.group_update([Round(1)] * 3, shared, states, problems, weights)
    alone = [algorithm.client_update(Round(1), shared, s, p) for s, p in zip(states, problems, strict=True)]
    for name, tensor in summed.items():
        wanted = sum(w * u.contribution[name] for w, u in zip(weights, alone, strict=True))
        assert torch.allclose(tensor, torch.as_tensor(wanted), rtol=1e-12)
    assert all(update.contribution == {} for update in updates)


def test_heads_that_are_solved_for_are_solved_at_every_pass() -> None:
    """Squared error, whose best head is a ridge regression on the features of the moment."""
    twin = world(regression=True)
    algorithm = pflego.PFLEGO(head_optimizer="solve", head_decay=0.2, passes=3, local_lr=0.1)
    for i, site in enumerate(twin.sites):
        net = Net(twin.net.V.copy(), twin.net.v.copy())
        for _ in range(3):
            phi = np.concatenate([net.phi(site.x), np.ones((site.n, 1))], axis=1)
            W = np.linalg.solve(phi.T @ phi / site.n + 0.2 * np.eye(5), phi.T @ site.t / site.n).T
            dV, dv, _ = gradients(net, W, site)
            net.V, net.v = net.V - 0.1 * dV, net.v - 0.1 * dv
        problem = Problems(twin.federation, twin.model)[i]
        update = algorithm.client_update(Round(1), twin.model.weights(), {}, problem)
        assert update.state == {}
        assert distance(update.contribution["0.weight"], twin.net.V - net.V) < 1e-9
        assert distance(update.contribution["0.bias"], twin.net.v - net.v) < 1e-9


def test_a_rate_at_home_above_the_bound_is_counted() -> None:
    twin = world()
    algorithm = pflego.PFLEGO(steps=3, passes=2, local_lr=50.0)
    with pytest.warns(UserWarning, match="bound of Proposition 2"):
        run = pflego.train(twin.federation, twin.model, algorithm, rounds=1)
    assert run.history[0]["above_bound"] == 5


def test_the_automatic_server_rate_is_for_one_pass() -> None:
    with pytest.raises(pflego.SettingError, match="passes=1"):
        pflego.PFLEGO(passes=2, server_lr="auto", server_optimizer="sgd")


@both_heads
@pytest.mark.parametrize("rule", ["gd", "solve"])
def test_adapting_makes_the_passes_of_a_participant(common: bool, rule: Literal["gd", "solve"]) -> None:
    """In the first round everybody takes part from the first weights: participants are everyone adapted."""
    federation = pflego.load("digits", clients=6, classes_per_client=4)
    model = pflego.models.build("mlp", (64,))
    algorithm = pflego.PFLEGO(
        steps=3, passes=3, local_lr=0.5, server_lr=0.5, server_optimizer="sgd", common_head=common, head_optimizer=rule
    )  # fmt: skip
    problems = Problems(federation, model)
    first = algorithm.init_shared(model, problems.outputs, 0)
    for i in range(len(federation)):
        state = algorithm.init_state(problems[i], 0)
        wanted = algorithm.client_update(Round(1), first, state, problems[i]).model
        adapted = algorithm.personal(first, algorithm.adapt(first, state, problems[i]), problems[i])
        assert wanted is not None
        assert distance(wanted["1.weight"], first["1.weight"].numpy()) > 0.01
        for name, tensor in wanted.items():
            torch.testing.assert_close(adapted[name], tensor, rtol=0, atol=1e-6)
