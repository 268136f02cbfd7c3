"""pFedMe against NumPy float64: personal, local and shared models, batches, limits, resuming."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pflego
from pflego.comparison.rates import main_rate
from pflego.learning.problems import Problems
from tests.support.reference import (
    World,
    assert_identical,
    assert_same_weights,
    cohorts,
    distance,
    world,
)
from tests.support.rivals import (
    NAMES,
    Indices,
    Simulation,
    assert_at,
    assert_weights,
    batches,
    global_sites,
    own_models,
    pfedme,
    steps,
)

TIMES, INNER, BETA, MU, ETA, ROUNDS, SEED = 4, 3, 0.15, 1.5, 0.3, 6, 4
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


def method(**settings: Any) -> pflego.PFedMe:
    plain = {"steps": TIMES, "inner_steps": INNER, "client_lr": BETA, "mu": MU, "local_lr": ETA}
    return pflego.PFedMe(**{**plain, "head_init": "zeros", **settings})


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    settings = {"rounds": ROUNDS, "participation": 3, "seed": SEED, **options}
    return pflego.train(twin.federation, twin.model, algorithm, **settings)


@pytest.mark.parametrize("b", [1.0, 0.4])
def test_pfedme_follows_its_equations(b: float) -> None:
    twin = world()
    simulation = own_models(twin, global_sites(twin), shared=True)
    client = pfedme(TIMES, BETA, inner=INNER, mu=MU, eta=ETA)
    simulation.play(
        lambda s, i: s.moved(client(s, i)),
        CHOSEN,
        server=lambda s, d: {name: w + b * d[name] for name, w in s.shared.items()},
    )
    run = train(twin, method(server_lr=b))
    assert_at(run, simulation)
    assert run.history[0]["forward_passes"] == run.history[0]["backward_passes"] == TIMES * INNER


def test_each_time_has_a_batch_of_its_own_for_all_of_its_steps() -> None:
    twin, size = world(), 4

    def drawn(s: Simulation, i: int) -> list[Indices]:
        site = s.sites[i]
        return batches(SEED, s.round, i, site, size, 2 * ceil(site.n / size))

    simulation = own_models(twin, global_sites(twin), shared=True)
    rule: dict[str, Any] = {"momentum": 0.5, "decay": 0.05}
    simulation.play(pfedme(0, BETA, inner=INNER, mu=MU, eta=ETA, drawn=drawn, **rule), CHOSEN)
    run = train(twin, method(epochs=2, batch_size=size, momentum=0.5, weight_decay=0.05))
    assert_at(run, simulation)
    assert run.history[0]["forward_passes"] == 2 * INNER


def test_a_local_model_that_goes_all_the_way_once_is_fedavgs() -> None:
    """eta lambda = 1 and R = 1: w_i is theta_i after K of FedProx's steps."""
    twin = world()
    ours = train(twin, method(steps=1, inner_steps=5, local_lr=1 / MU))
    theirs = train(twin, pflego.FedProx(steps=5, client_lr=BETA, mu=MU, head_init="zeros"))
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)


def test_without_a_pull_the_shared_model_stays_and_personal_ones_learn_from_it_alone() -> None:
    twin, algorithm = world(), method(mu=0.0)
    run = train(twin, algorithm)
    start = algorithm.init_shared(twin.model, 6, SEED)
    assert_same_weights(run.shared, start)
    for i in {i for members in CHOSEN for i in members}:
        w = steps(
            {NAMES[n]: t.numpy() for n, t in start.items()}, global_sites(twin)[i], TIMES * INNER, rate=BETA
        )
        assert_weights(run.states[f"c{i}"], w)


def test_the_local_model_descends_the_envelope() -> None:
    """Solved to the end, lambda (w - theta) is the gradient of min_theta l(theta) + lambda/2 |theta - w|^2."""
    twin, site = world(), global_sites(world())[1]
    algorithm = method(steps=1, inner_steps=4000, local_lr=1e-3)
    shared = algorithm.init_shared(twin.model, 6, SEED)
    problem = Problems(twin.federation, twin.model, labels="global")[1]
    start = {NAMES[name]: w.numpy() for name, w in shared.items()}

    def envelope(w: Any) -> float:
        theta = steps(w, site, 4000, rate=BETA, anchor=w, mu=MU)
        z = np.tanh(site.x @ theta["V"].T + theta["v"]) @ theta["W"][:, :-1].T + theta["W"][:, -1]
        loss = (np.log(np.exp(z).sum(axis=1)) - (z * site.t).sum(axis=1)).mean()
        return float(loss + MU / 2 * sum(((theta[n] - w[n]) ** 2).sum() for n in w))

    _, local = algorithm._solve(shared, {}, problem)
    slope = (shared["head"] - local["head"]) / 1e-3
    for place in [(0, 0), (5, 4)]:
        sides = []
        for sign in (1, -1):
            moved = {**start, "W": start["W"].copy()}
            moved["W"][place] += sign * 1e-4
            sides.append(envelope(moved))
        assert float(slope[place]) == pytest.approx((sides[0] - sides[1]) / 2e-4, abs=1e-7)


def test_who_adapts_or_joins_trains_from_the_shared_model_as_in_a_round() -> None:
    twin, algorithm = world(), method()
    run = train(twin, algorithm)
    shared = {NAMES[name]: w.numpy() for name, w in run.shared.items()}
    sites = global_sites(twin)
    for i in range(5):
        simulation = Simulation(sites, shared, [{} for _ in sites])
        pfedme(TIMES, BETA, inner=INNER, mu=MU, eta=ETA)(simulation, i)
        problem, state = run.problems[i], run.states[f"c{i}"]
        assert_weights(algorithm.adapt(run.shared, state, problem), simulation.own[i])
        assert_weights(algorithm.welcome(run.shared, state, problem), simulation.own[i])
        assert_same_weights(algorithm.personal(run.shared, state, problem), state)


def test_auto_allows_for_the_pull() -> None:
    twin, algorithm = world(), method(client_lr="auto")
    shared = algorithm.init_shared(twin.model, 6, SEED)
    problem = Problems(twin.federation, twin.model, labels="global")[2]
    bare = algorithm.rate_of(problem, shared, list(shared))
    fixed = method(client_lr=1 / (1 / bare + MU))
    ours, theirs = (kind.adapt(shared, {}, problem) for kind in (algorithm, fixed))
    assert distance(ours["head"], theirs["head"].numpy()) < 1e-9


def test_runs_are_resumed_to_the_bit(tmp_path: Path) -> None:
    twin, algorithm = world(), method(batch_size=4, lr_decay=0.9)
    whole = train(twin, algorithm, evaluate_every=1)
    options: dict[str, Any] = {"evaluate_every": 1, "out": tmp_path}
    train(twin, algorithm, rounds=2, **options)
    assert_identical(train(twin, algorithm, resume=True, **options), whole)


def test_a_comparison_searches_the_rate_of_personal_models() -> None:
    assert main_rate(method()) == "client_lr"
