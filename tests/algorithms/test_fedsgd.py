"""FedSGD against centralised gradient descent, NumPy float64 and FedAvg with one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego.exchange.round import Round
from pflego.learning.problems import Problems
from tests.support.reference import Params, Site, World, assert_same_weights, cohorts, distance, world
from tests.support.rivals import (
    Simulation,
    assert_at,
    assert_weights,
    batches,
    global_sites,
    grad,
    gradient_step,
    one_gradient,
    shared_head,
    steps,
)

ROUNDS, SEED, BETA = 8, 4, 0.3
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    settings = {"rounds": ROUNDS, "participation": 3, "seed": SEED, **options}
    return pflego.train(twin.federation, twin.model, algorithm, **settings)


def test_fedsgd_follows_its_equations() -> None:
    twin = world()
    simulation = shared_head(twin, global_sites(twin))
    simulation.play(one_gradient, CHOSEN, server=gradient_step(BETA))
    run = train(twin, pflego.FedSGD(client_lr=BETA, head_init="zeros"))
    assert_at(run, simulation)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (1, 1)


def test_with_everybody_it_is_centralised_gradient_descent() -> None:
    twin = world()
    run = train(twin, pflego.FedSGD(client_lr=BETA, head_init="zeros"), rounds=20, participation=5)
    sites = global_sites(twin)
    pool = Site(np.concatenate([s.x for s in sites]), np.concatenate([s.t for s in sites]))
    w = steps({"V": twin.net.V, "v": twin.net.v, "W": np.zeros((6, 5))}, pool, 20, rate=BETA)
    assert_weights(run.shared, w)


def test_it_is_fedavg_with_one_step_in_what_is_learned_and_in_what_is_said_of_it() -> None:
    twin = world()
    options: dict[str, Any] = {"client_lr": BETA, "lr_decay": 0.9, "weight_decay": 0.02, "fine_tune": 2}
    ours, theirs = train(twin, pflego.FedSGD(**options)), train(twin, pflego.FedAvg(steps=1, **options))
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)
    for row, other in zip(ours.history, theirs.history, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-12)
        assert row["participants_accuracy"] == other["participants_accuracy"]


def test_a_gradient_may_be_of_a_random_batch_with_decays() -> None:
    twin, size = world(), 4

    def client(s: Simulation, i: int) -> Params:
        [drawn] = batches(SEED, s.round, i, s.sites[i], size, 1)
        g = grad(s.shared, s.sites[i].part(drawn))
        return {name: g[name] + 0.05 * w for name, w in s.shared.items()}

    simulation = shared_head(twin, global_sites(twin))
    simulation.play(
        client,
        CHOSEN,
        server=lambda s, g: {n: w - BETA * 0.8 ** (s.round - 1) * g[n] for n, w in s.shared.items()},
    )
    method = pflego.FedSGD(
        client_lr=BETA, lr_decay=0.8, weight_decay=0.05, batch_size=size, head_init="zeros"
    )
    assert_at(train(twin, method), simulation)


def test_auto_steps_at_the_smallest_of_the_cohorts_rates() -> None:
    twin, method = world(), pflego.FedSGD(lr_decay=0.5)
    start = method.init_shared(twin.model, 6, SEED)
    problems = Problems(twin.federation, twin.model, labels="global")
    rates = [method.rate_of(problems[i], start, list(start)) for i in CHOSEN[0]]
    assert max(rates) > 1.01 * min(rates)
    here = {"V": twin.net.V, "v": twin.net.v, "W": start["head"].numpy()}
    simulation = shared_head(twin, global_sites(twin), here["W"])
    simulation.play(one_gradient, CHOSEN[:1], server=gradient_step(min(rates)))
    assert_at(train(twin, method, rounds=1), simulation)


def test_a_rate_that_clients_measured_is_neither_clipped_nor_averaged() -> None:
    twin, method = world(), pflego.FedSGD()
    plain, clipped = (
        train(twin, method, rounds=1, transforms=transforms, aggregation=pflego.Median())
        for transforms in ([], [pflego.Clip(1e-4)])
    )
    start = method.init_shared(twin.model, 6, SEED)
    moved = [
        torch.cat([(run.shared[n] - start[n]).flatten() for n in start]).norm() for run in (plain, clipped)
    ]
    problems = Problems(twin.federation, twin.model, labels="global")
    rate = min(method.rate_of(problems[i], start, list(start)) for i in CHOSEN[0])
    assert 0 < float(moved[1]) <= rate * 1e-4 * 3 < float(moved[0])


def test_what_is_sent_is_a_gradient() -> None:
    twin = world()
    method = pflego.FedSGD(client_lr=BETA, head_init="zeros")
    problem = Problems(twin.federation, twin.model, labels="global")[1]
    update = method.client_update(Round(1), method.init_shared(twin.model, 6, 0), {}, problem)
    wanted = grad({"V": twin.net.V, "v": twin.net.v, "W": np.zeros((6, 5))}, global_sites(twin)[1])
    assert distance(update.contribution["head"], wanted["W"]) < 1e-12


def test_it_has_no_number_of_steps() -> None:
    with pytest.raises(TypeError, match="steps"):
        pflego.FedSGD(steps=2)
