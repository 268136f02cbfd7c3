"""MOON against its equations in NumPy float64, and what is left of it at its limits."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pflego
from tests.support.reference import Params, World, assert_identical, assert_same_weights, cohorts, world
from tests.support.rivals import (
    Simulation,
    assert_at,
    batches,
    contrast,
    global_sites,
    moon,
    steps,
    with_previous,
)

TAU, BETA, ROUNDS, SEED = 5, 0.15, 6, 4
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)
OPTIONS: dict[str, Any] = {"steps": TAU, "client_lr": BETA, "head_init": "zeros"}


def train(twin: World, algorithm: pflego.Algorithm, rounds: int = ROUNDS, **options: Any) -> pflego.Run:
    return pflego.train(
        twin.federation, twin.model, algorithm, rounds=rounds, participation=3, seed=SEED, **options
    )


@pytest.mark.parametrize(("mu", "temperature"), [(5.0, 0.5), (1.0, 0.2)])
def test_it_follows_its_equations(mu: float, temperature: float) -> None:
    twin = world()
    simulation = with_previous(twin, global_sites(twin))
    simulation.play(moon(TAU, BETA, mu=mu, T=temperature), CHOSEN)
    run = train(twin, pflego.MOON(**OPTIONS, mu=mu, temperature=temperature))
    assert_at(run, simulation)
    plain = train(twin, pflego.FedAvg(**OPTIONS))
    assert np.abs(plain.shared["0.weight"].numpy() - simulation.shared["V"]).max() > 1e-3
    assert (run.history[-1]["forward_passes"], run.history[-1]["backward_passes"]) == (TAU + 2, TAU)


def test_epochs_of_batches_follow_the_equations() -> None:
    twin, size, epochs = world(), 4, 2

    def client(s: Simulation, i: int) -> Params:
        site, count = s.sites[i], epochs * ceil(s.sites[i].n / size)
        term = contrast(s.shared, s.own[i], site, mu=3.0, T=0.5)
        drawn = batches(SEED, s.round, i, site, size, count)
        w = steps(s.shared, site, count, rate=BETA, momentum=0.5, batches=drawn, on_features=term)
        s.own[i] = {"Vp": w["V"], "vp": w["v"]}
        return w

    simulation = with_previous(twin, global_sites(twin))
    simulation.play(client, CHOSEN)
    method = pflego.MOON(
        epochs=epochs, batch_size=size, client_lr=BETA, momentum=0.5, mu=3.0, head_init="zeros"
    )
    run = train(twin, method)
    assert_at(run, simulation)
    assert run.history[-1]["forward_passes"] == epochs + 2
    assert_same_weights(train(twin, method, slice_size=3).shared, run.shared, within=1e-12)


def test_without_the_term_it_is_fedavg() -> None:
    twin = world()
    ours, theirs = train(twin, pflego.MOON(mu=0.0)), train(twin, pflego.FedAvg())
    assert_same_weights(ours.shared, theirs.shared)
    assert ours.history[0]["forward_passes"] == theirs.history[0]["forward_passes"]


def test_a_first_round_has_nothing_to_contrast() -> None:
    """Received and previous backbone are theta_0, and the term is the same everywhere."""
    twin = world()
    ours, theirs = (
        train(twin, kind(**OPTIONS), rounds=1)
        for kind in (lambda **o: pflego.MOON(**o, mu=5.0), pflego.FedAvg)
    )
    assert_same_weights(ours.shared, theirs.shared, within=1e-14)


def test_everybody_uses_the_shared_model() -> None:
    twin = world()
    run = train(twin, pflego.MOON(**OPTIONS))
    x = twin.federation[0].x_test
    phi = np.tanh(x.numpy() @ run.shared["0.weight"].numpy().T + run.shared["0.bias"].numpy())
    W = run.shared["head"].numpy()
    ours = run.personal_model("c0")(x).detach().numpy()
    assert np.abs(ours - (phi @ W[:, :-1].T + W[:, -1])).max() < 1e-12
    tuned = pflego.MOON(**OPTIONS, fine_tune=3)
    assert tuned.personal(run.shared, run.states["c0"], run.problems[0]).keys() == {
        "0.weight",
        "0.bias",
        "head",
    }


def test_it_resumes_to_the_bit(tmp_path: Path) -> None:
    twin, method = world(), pflego.MOON(**OPTIONS, batch_size=5)
    whole = train(twin, method, evaluate_every=1)
    train(twin, method, rounds=2, out=tmp_path, evaluate_every=1)
    assert_identical(train(twin, method, out=tmp_path, evaluate_every=1, resume=True), whole)
