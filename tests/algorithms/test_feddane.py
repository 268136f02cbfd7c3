"""FedDANE against NumPy float64: two exchanges, what is left of them if replies are lost, and its limits."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego.exchange.round import Round
from pflego.learning.problems import Problems
from tests.support.reference import (
    Params,
    Site,
    World,
    assert_identical,
    assert_same_weights,
    cohorts,
    distance,
    world,
)
from tests.support.rivals import (
    Simulation,
    assert_at,
    assert_weights,
    batches,
    feddane,
    global_sites,
    grad,
    gradient_then_differences,
    shared_head,
    steps,
)

TAU, BETA, MU, ROUNDS, SEED = 6, 0.15, 0.4, 6, 4
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)
TWO: dict[str, Any] = {"server": gradient_then_differences, "exchanges": 2}


def method(**settings: Any) -> pflego.FedDane:
    return pflego.FedDane(**{"steps": TAU, "client_lr": BETA, "mu": MU, "head_init": "zeros", **settings})


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    settings = {"rounds": ROUNDS, "participation": 3, "seed": SEED, **options}
    return pflego.train(twin.federation, twin.model, algorithm, **settings)


@pytest.mark.parametrize("mu", [0.0, MU])
def test_feddane_follows_its_equations(mu: float) -> None:
    twin = world()
    simulation = shared_head(twin, global_sites(twin))
    simulation.play(feddane(TAU, BETA, mu=mu), CHOSEN, **TWO)
    run = train(twin, method(mu=mu))
    assert_at(run, simulation)
    row, size = run.history[0], sum(w.nbytes for w in run.shared.values())
    assert (row["forward_passes"], row["backward_passes"]) == (TAU + 2, TAU + 2)
    assert (row["bytes_up"], row["bytes_down"]) == (3 * 2 * size, 3 * 3 * size)


def test_epochs_of_batches_are_corrected_by_the_gradient_of_all_samples() -> None:
    twin, size = world(), 4

    def client(s: Simulation, i: int) -> Params:
        site, own = s.sites[i], grad(s.shared, s.sites[i])
        if s.exchange == 0:
            return own
        tau = 2 * ceil(site.n / size)
        drawn = batches(SEED, s.round, i, site, size, tau)
        slope = {name: s.memory[name] - g for name, g in own.items()}
        near: dict[str, Any] = {"anchor": s.shared, "mu": MU, "slope": slope}
        return s.moved(steps(s.shared, site, tau, rate=BETA, momentum=0.5, batches=drawn, **near))

    simulation = shared_head(twin, global_sites(twin))
    simulation.play(client, CHOSEN, **TWO)
    assert_at(train(twin, method(epochs=2, batch_size=size, momentum=0.5)), simulation)


def test_with_one_client_it_is_fedprox() -> None:
    """Its own gradient is then everybody's."""
    twin = world(clients=1)
    ours = train(twin, method(), participation=1)
    theirs = train(twin, pflego.FedProx(steps=TAU, client_lr=BETA, mu=MU, head_init="zeros"), participation=1)
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)


def test_with_one_step_and_everybody_it_is_centralised_gradient_descent() -> None:
    twin = world()
    run = train(twin, method(steps=1), participation=5)
    sites = global_sites(twin)
    pool = Site(np.concatenate([s.x for s in sites]), np.concatenate([s.t for s in sites]))
    assert_weights(run.shared, steps(shared_head(twin, sites).shared, pool, ROUNDS, rate=BETA))


def test_everybody_starts_along_the_same_gradient() -> None:
    """The first step of every client is the cohort's, whatever data it has."""
    twin, algorithm = world(), method(steps=1)
    shared = algorithm.init_shared(twin.model, 6, SEED)
    mean = {f"gradient/{name}": torch.full_like(w, 0.3) for name, w in shared.items()}
    problems = Problems(twin.federation, twin.model, labels="global")
    for i in range(5):
        update = algorithm.client_update(Round(1, exchange=1), {**shared, **mean}, {}, problems[i])
        assert distance(update.contribution["0.weight"], np.full((4, 6), -BETA * 0.3)) < 1e-12


def test_each_exchange_has_a_deadline_of_its_own() -> None:
    """Gradients of all arrive in time, the models of those with many samples do not."""
    twin, limit = world(), 100
    simulation = shared_head(twin, global_sites(twin))
    passes = {0: 2, 1: 2 * (TAU + 1)}
    assert {site.n * passes[1] <= limit for site in twin.sites} == {True, False}
    arrived = simulation.play(
        feddane(TAU, BETA, mu=MU),
        CHOSEN,
        arrives=lambda i, _: twin.sites[i].n * passes[simulation.exchange] <= limit,
        **TWO,
    )
    run = train(twin, method(), speed=pflego.Speed(1000, spread=0), deadline=limit / 1000)
    assert_at(run, simulation)
    assert [row["missing"] for row in run.history] == [3 - n for n in arrived]
    assert max(arrived) > 0


def test_runs_are_resumed_to_the_bit_and_keep_no_gradient(tmp_path: Path) -> None:
    twin, algorithm = world(), method(batch_size=4)
    whole = train(twin, algorithm, evaluate_every=1)
    options: dict[str, Any] = {"evaluate_every": 1, "out": tmp_path}
    train(twin, algorithm, rounds=2, **options)
    assert_identical(train(twin, algorithm, resume=True, **options), whole)
    assert whole.shared.keys() == {"0.weight", "0.bias", "head"}


def test_a_gradient_of_an_earlier_round_is_not_used() -> None:
    twin, algorithm = world(), method()
    shared = algorithm.init_shared(twin.model, 6, SEED)
    sent = {f"gradient/{name}": torch.ones_like(w) for name, w in shared.items()}
    _, server = algorithm.server_step(Round(3), shared, {}, sent)
    now, later = (algorithm.answers(Round(t, exchange=1), shared, server, ["a", "b"]) for t in (3, 4))
    assert float(now["b"]["gradient/head"].min()) == 1
    assert float(later["a"]["gradient/head"].max()) == 0
    assert algorithm.answers(Round(3), shared, server, ["a"]) == {}
