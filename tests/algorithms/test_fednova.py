"""FedNova against NumPy float64, and what it is for: steps that differ between clients."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest

import pflego
from pflego.learning.problems import Problems
from tests.support.reference import Params, Site, World, assert_same_weights, cohorts, distance, world
from tests.support.rivals import (
    Simulation,
    assert_at,
    batches,
    global_sites,
    mean_length,
    per_step,
    shared_head,
    steps,
)

BETA, ROUNDS, SEED, SIZE, EPOCHS = 0.15, 6, 4, 5, 2
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    settings = {"rounds": ROUNDS, "participation": 3, "seed": SEED, **options}
    return pflego.train(twin.federation, twin.model, algorithm, **settings)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("lr_decay", [1.0, 0.7])
def test_fednova_follows_its_equations(momentum: float, lr_decay: float) -> None:
    """The authors' closed form of the coefficients under momentum: (tau - m (1 - m^tau) / (1 - m)) / (1 - m)."""
    twin = world()

    def client(s: Simulation, i: int) -> Params:
        site, rate = s.sites[i], BETA * lr_decay ** (s.round - 1)
        tau = EPOCHS * ceil(site.n / SIZE)
        drawn = batches(SEED, s.round, i, site, SIZE, tau)
        w = steps(s.shared, site, tau, rate=rate, momentum=momentum, decay=0.03, batches=drawn)
        m = momentum
        return per_step(s.moved(w), rate * (tau - m * (1 - m**tau) / (1 - m)) / (1 - m))

    simulation = shared_head(twin, global_sites(twin))
    assert len({ceil(site.n / SIZE) for site in simulation.sites}) > 3
    simulation.play(client, CHOSEN, server=mean_length)
    method = pflego.FedNova(
        epochs=EPOCHS,
        batch_size=SIZE,
        client_lr=BETA,
        momentum=momentum,
        lr_decay=lr_decay,
        weight_decay=0.03,
        head_init="zeros",
    )
    run = train(twin, method)
    assert_at(run, simulation)
    assert run.history[0]["forward_passes"] == EPOCHS


def test_with_the_same_steps_it_is_fedavg() -> None:
    twin = world()
    options: dict[str, Any] = {"steps": 6, "client_lr": BETA, "momentum": 0.4, "fine_tune": 2}
    ours, theirs = train(twin, pflego.FedNova(**options)), train(twin, pflego.FedAvg(**options))
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)
    assert ours.history[-1]["loss"] == pytest.approx(theirs.history[-1]["loss"], rel=1e-10)


def test_rates_that_clients_measure_are_divided_out() -> None:
    twin, method = world(), pflego.FedNova(steps=4)
    start = method.init_shared(twin.model, 6, SEED)
    problems = Problems(twin.federation, twin.model, labels="global")

    def client(s: Simulation, i: int) -> Params:
        rate = method.rate_of(problems[i], start, list(start))
        return per_step(s.moved(steps(s.shared, s.sites[i], 4, rate=rate)), 4 * rate)

    simulation = shared_head(twin, global_sites(twin), start["head"].numpy())
    simulation.play(client, CHOSEN[:1], server=mean_length)
    assert_at(train(twin, method, rounds=1), simulation)


def test_its_small_steps_descend_everybodys_loss_where_fedavgs_descend_another() -> None:
    """At a rate that goes to nothing both go along a sum of gradients: FedNova's is the whole federation's."""
    twin, rate = world(), 1e-6
    sites = global_sites(twin)
    pool = Site(np.concatenate([s.x for s in sites]), np.concatenate([s.t for s in sites]))
    start = shared_head(twin, sites).shared
    [wanted] = [start["W"] - steps(start, pool, 1, rate=1.0)["W"]]
    unit = wanted / np.linalg.norm(wanted)
    options: dict[str, Any] = {"epochs": 8, "batch_size": 1, "client_lr": rate, "head_init": "zeros"}
    ours, theirs = (
        train(twin, method, rounds=1, participation=5).shared["head"]
        for method in (pflego.FedNova(**options), pflego.FedAvg(**options))
    )
    assert distance(-ours / ours.norm(), unit) < 1e-4
    assert distance(-theirs / theirs.norm(), unit) > 1e-2
