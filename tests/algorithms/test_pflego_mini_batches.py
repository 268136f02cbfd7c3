"""PFLEGO(batch_size=): a joint step at home for every mini-batch, then head steps from the features seen on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego.exchange.round import Round
from pflego.learning.problems import Problems
from pflego.randomness import torch_generator
from tests.support.reference import (
    F64,
    Net,
    Visit,
    World,
    assert_follows,
    assert_identical,
    cohorts,
    distance,
    gradients,
    link,
    loss,
    rounds_at_home,
    world,
)
from tests.support.rivals import batches

both_heads = pytest.mark.parametrize("common", [False, True], ids=["own heads", "common head"])


def batches_of(
    twin: World,
    *,
    size: int,
    passes: int = 1,
    tau: int,
    beta: float,
    eta: float,
    decay: float,
    seed: int,
    sample: int | None = None,
) -> Visit:
    """What a client does by the equations of mini_batches.py, in NumPy."""

    def visit(t: int, i: int, net: Net, W_0: F64 | None) -> F64:
        site, rows, own = twin.sites[i], twin.rows(i), twin.heads[i]
        if sample is not None and sample < site.n:
            generator = torch_generator(seed, "samples of the joint step", round_number=t, client=f"c{i}")
            site = site.part(np.sort(torch.randperm(site.n, generator=generator).numpy()[:sample]))
        received = np.zeros_like(own) if W_0 is None else W_0[rows]
        phi = np.full((site.n, 4), np.nan)
        count = passes * -(-site.n // size)
        for batch in batches(seed, t, i, site, size, count):
            some = site.part(batch)
            phi[batch] = net.phi(some.x)
            dV, dv, dW = gradients(net, (0.0 if W_0 is None else W_0[rows]) + own, some)
            net.V, net.v = net.V - eta * dV, net.v - eta * dv
            own = own - eta * (dW + decay * own)
            if W_0 is not None:
                W_0[rows] -= eta * dW
        features = np.concatenate([phi, np.ones((site.n, 1))], axis=1)
        for _ in range(tau - 1):
            residual = (link(features @ (received + own).T, site.softmax) - site.t) * site.shares[:, None]
            own = own - beta * (residual.T @ features + decay * own)
        return own

    return visit


def algorithm(**changed: Any) -> pflego.PFLEGO:
    settings: dict[str, Any] = {
        "steps": 4,
        "client_lr": 0.2,
        "local_lr": 0.1,
        "batch_size": 5,
        "head_init": "zeros",
    }
    return pflego.PFLEGO(**(settings | changed))


@both_heads
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adam"])
@pytest.mark.parametrize("kind", ["classification", "regression", "weighted"])
def test_rounds_follow_the_equations(common: bool, passes: int, adam: bool, kind: str) -> None:
    """Clients of 7 to 27 samples, none a multiple of the batch's five."""
    twin = world(regression=kind == "regression", weighted=kind == "weighted")
    if common:
        twin.common = np.zeros((twin.federation.outputs, 5))
    rho = 0.05 if adam else 0.9
    method = algorithm(
        passes=passes,
        server_lr=rho,
        server_optimizer="adam" if adam else "sgd",
        common_head=common,
        head_decay=0.3,
    )
    run = pflego.train(twin.federation, twin.model, method, rounds=6, participation=2, seed=3)
    chosen = cohorts(pflego.Fixed(2), 5, rounds=6, seed=3)
    visit = batches_of(twin, size=5, passes=passes, tau=4, beta=0.2, eta=0.1, decay=0.3, seed=3)
    rounds_at_home(twin, chosen, visit, r=2, rho=rho, adam=adam, eps=0.0003)
    assert_follows(run, twin, 1e-9)
    assert [(row["forward_passes"], row["backward_passes"]) for row in run.history] == [(passes, passes)] * 6


@pytest.mark.parametrize("slice_size", [None, 2], ids=["at once", "in slices"])
def test_a_round_may_look_at_some_of_the_samples(slice_size: int | None) -> None:
    """Ten of 12 to 27, in batches of five; all of the client that has seven."""
    twin = world(weighted=True)
    method = algorithm(sample=10, server_lr=0.9, server_optimizer="sgd", head_decay=0.3)
    run = pflego.train(twin.federation, twin.model, method, rounds=4, seed=3, slice_size=slice_size)
    visit = batches_of(twin, size=5, tau=4, beta=0.2, eta=0.1, decay=0.3, seed=3, sample=10)
    rounds_at_home(twin, [list(range(5))] * 4, visit, r=5, rho=0.9, adam=False)
    assert_follows(run, twin, 1e-9)
    problem = Problems(twin.federation, twin.model)[4]
    method.client_update(Round(1), method.init_shared(twin.model, 6, 0), run.states["c4"], problem)
    assert (problem.forward_passes, problem.backward_passes) == (10 / 27, 10 / 27)


@both_heads
def test_one_batch_of_all_samples_and_no_head_steps_is_a_joint_step(common: bool) -> None:
    """What a client sends and keeps is local_lr times the gradient of its loss, in theta, W_0 and its own head."""
    twin = world()
    twin.random_heads()
    method = algorithm(
        steps=1, batch_size=100, server_lr=1.0, server_optimizer="sgd", common_head=common, head_decay=0.0
    )
    shared = method.init_shared(twin.model, 6, 0)
    for i, site in enumerate(twin.sites):
        problem = Problems(twin.federation, twin.model)[i]
        update = method.client_update(
            Round(1), shared, {"head": torch.from_numpy(twin.heads[i].copy())}, problem
        )
        dV, dv, dW = gradients(twin.net, twin.heads[i], site)
        assert distance(update.contribution["0.weight"], 0.1 * dV) < 1e-12
        assert distance(update.contribution["0.bias"], 0.1 * dv) < 1e-12
        assert distance(update.state["head"], twin.heads[i] - 0.1 * dW) < 1e-12
        if common:
            assert distance(update.contribution["head"][problem.rows], 0.1 * dW) < 1e-12


@both_heads
def test_participants_are_judged_with_the_theta_they_received(common: bool) -> None:
    """Their own has gone, as it has when they use their head; the loss of the history is there too."""
    twin = world()
    run = pflego.train(twin.federation, twin.model, algorithm(common_head=common), rounds=1)
    wanted = sum(
        a * loss(twin.net, run.states[f"c{i}"]["head"].numpy(), site)
        for i, (a, site) in enumerate(zip(twin.alphas, twin.sites, strict=True))
    )
    assert run.history[0]["loss"] == pytest.approx(wanted, rel=1e-9)


def test_adapting_fits_the_head_alone() -> None:
    twin = world()
    method = algorithm(passes=2)
    run = pflego.train(twin.federation, twin.model, method, rounds=2)
    problem = run.problems[3]
    adapted = method.adapt(run.shared, run.states["c3"], problem)
    assert set(adapted) == {"head"}
    before, after = (
        problem.loss(method.personal(run.shared, s, problem)) for s in (run.states["c3"], adapted)
    )
    assert after < before


def test_batches_are_drawn_anew_in_every_round_and_by_the_seed_alone() -> None:
    twin = world()
    one, same, other = (
        pflego.train(twin.federation, twin.model, algorithm(), rounds=3, seed=seed) for seed in (1, 1, 2)
    )
    assert_identical(one, same)
    assert not torch.equal(one.shared["0.weight"], other.shared["0.weight"])


def test_defaults_are_those_of_mini_batches() -> None:
    method = pflego.PFLEGO(batch_size=32)
    assert (method.server_lr, method.local_lr, method.eps) == (0.01, 0.05, 0.0003)
    assert pflego.PFLEGO(batch_size=32, server_lr=0.1, local_lr=0.3).settings()["local_lr"] == 0.3
    paper = pflego.PFLEGO()
    assert (paper.server_lr, paper.local_lr, paper.eps) == (0.003, "auto", 1e-8)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local_lr": "auto"}, "give mini-batches a number"),
        ({"server_lr": "auto", "server_optimizer": "sgd"}, "over all samples"),
        ({"head_optimizer": "solve"}, "heads that take steps"),
        ({"batch_size": 0}, "batch_size must be a whole number above 0"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(pflego.SettingError, match=words):
        pflego.PFLEGO(**({"batch_size": 32} | settings))


def test_an_objective_needs_the_full_gradient() -> None:
    twin = world()
    with pytest.raises(pflego.SettingError, match="all samples"):
        pflego.train(twin.federation, twin.model, algorithm(), rounds=1, objective=pflego.QFair(1.0))
