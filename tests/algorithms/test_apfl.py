"""APFL against its equations in NumPy float64, and the ends of its mixture."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pflego
from tests.support.reference import Params, assert_identical, assert_same_weights, cohorts, world
from tests.support.rivals import (
    Simulation,
    apfl,
    assert_at,
    assert_weights,
    batches,
    called,
    global_sites,
    grad,
    local_sites,
    mixtures,
    part,
)
from tests.support.trained import BETA, PLAIN, ROUNDS, SEED, TAU, train

CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


@pytest.mark.parametrize("labels", ["local", "global"])
@pytest.mark.parametrize("learn", [True, False])
def test_apfl_follows_its_equations(labels: Any, learn: bool) -> None:
    twin = world()
    simulation = mixtures(twin, local_sites(twin) if labels == "local" else global_sites(twin), 0.3)
    simulation.play(apfl(TAU, BETA, learn=learn), CHOSEN)
    algorithm = pflego.APFL(steps=TAU, labels=labels, mixing=0.3, learn_mixing=learn, **PLAIN)
    run = train(twin, algorithm)
    assert_at(run, simulation)
    shares = [float(state["mixing"]) for state in run.states.values()]
    assert (max(abs(share - 0.3) for share in shares) > 1e-3) is learn
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (2 * TAU, 2 * TAU)
    for i, own in enumerate(simulation.own):  # what a client uses
        a, v, w = own["a"], part(own, "own "), simulation.shared
        mixed = {name: a * v[name] + (1 - a) * w[name] for name in w}
        assert_weights(algorithm.personal(run.shared, run.states[f"c{i}"], run.problems[i]), mixed)


def test_batches_momentum_and_decays_follow_the_equations() -> None:
    twin, size, epochs = world(), 4, 2
    simulation = mixtures(twin, global_sites(twin))

    def client(s: Simulation, i: int) -> Params:
        site, rate = s.sites[i], BETA * 0.8 ** (s.round - 1)
        w, v, a = s.shared, part(s.own[i], "own "), s.own[i]["a"]
        speed = {name: np.zeros_like(x) for name, x in {**w, **called("own ", v)}.items()}
        drawn = batches(SEED, s.round, i, site, size, epochs * ceil(site.n / size))
        for k, batch in enumerate(drawn):
            here = site.part(batch)
            at_mixture = grad({n: a * v[n] + (1 - a) * w[n] for n in w}, here)
            alone = grad(w, here)
            slope = sum((at_mixture[n] * (v[n] - w[n])).sum() for n in w)
            for n in w:
                speed[n] = 0.6 * speed[n] + alone[n] + 0.05 * w[n]
                speed[f"own {n}"] = 0.6 * speed[f"own {n}"] + a * at_mixture[n] + 0.05 * v[n]
            w = {n: w[n] - rate * speed[n] for n in w}
            v = {n: v[n] - rate * speed[f"own {n}"] for n in v}
            a = np.clip(a - rate * slope, 0, 1) if k == 0 else a
        s.own[i] = {**called("own ", v), "a": a}
        return w

    simulation.play(client, CHOSEN)
    rule: dict[str, Any] = {"momentum": 0.6, "weight_decay": 0.05, "lr_decay": 0.8}
    assert_at(train(twin, pflego.APFL(epochs=epochs, batch_size=size, **rule, **PLAIN)), simulation)


def test_without_a_share_of_its_own_it_is_fedavg() -> None:
    twin = world()
    ours = train(twin, pflego.APFL(steps=TAU, mixing=0, learn_mixing=False, **PLAIN))
    theirs = train(twin, pflego.FedAvg(steps=TAU, **PLAIN))
    assert_same_weights(ours.shared, theirs.shared)
    assert ours.evaluate() == theirs.evaluate()


def test_with_nothing_but_its_own_it_is_learning_alone() -> None:
    """Clients with as many classes each, so that heads are of one size."""
    rng = np.random.default_rng(0)
    federation = pflego.Federation(
        [pflego.Client(f"c{i}", rng.normal(size=(9 + i, 6)), np.arange(9 + i) % 3) for i in range(5)]
    )
    options: dict[str, Any] = {"rounds": 4, "participation": 3, "seed": 2}
    mixed = pflego.APFL(steps=TAU, mixing=1, learn_mixing=False, labels="local", **PLAIN)
    ours, theirs = (
        pflego.train(federation, world().model, algorithm, **options)
        for algorithm in (mixed, pflego.Local(steps=TAU, **PLAIN))
    )
    for i, client in enumerate(federation.ids):
        used = mixed.personal(ours.shared, ours.states[client], ours.problems[i])
        assert_same_weights(used, theirs.states[client], within=1e-14)


def test_a_share_stays_between_nothing_and_everything() -> None:
    twin = world()
    run = train(twin, pflego.APFL(steps=TAU, client_lr=3.0), rounds=10)
    shares = [float(state["mixing"]) for state in run.states.values()]
    assert all(0 <= share <= 1 for share in shares)
    assert {0.0, 1.0} & set(shares)


def test_runs_resume_to_the_bit(tmp_path: Path) -> None:
    twin, algorithm = world(), pflego.APFL(epochs=2, batch_size=4, client_lr=BETA)
    whole = train(twin, algorithm, evaluate_every=1)
    train(twin, algorithm, rounds=2, out=tmp_path, evaluate_every=1)
    assert_identical(train(twin, algorithm, out=tmp_path, resume=True, evaluate_every=1), whole)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(pflego.SettingError, match="mixing"):
        pflego.APFL(mixing=share)
