"""FedALA against its equations in NumPy float64: what a client takes of its own model and of the shared one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pflego
from tests.support.reference import assert_identical, assert_same_weights, cohorts, world
from tests.support.rivals import (
    assert_at,
    assert_weights,
    fedala,
    global_sites,
    local_sites,
    old_models,
    part,
)
from tests.support.trained import BETA, PLAIN, ROUNDS, SEED, TAU, train

CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


@pytest.mark.parametrize("labels", ["local", "global"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("share", [0.6, 1.0])
def test_fedala_follows_its_equations(labels: Any, layers: int, share: float) -> None:
    twin, top = world(), "W" if layers == 1 else "VvW"
    simulation = old_models(twin, local_sites(twin) if labels == "local" else global_sites(twin), top)
    simulation.play(fedala(TAU, BETA, seed=SEED, share=share, eta=3.0, top=top), CHOSEN)
    algorithm = pflego.FedALA(
        steps=TAU, labels=labels, layers=layers, mixing_lr=3.0, mixing_share=share, **PLAIN
    )
    run = train(twin, algorithm)
    assert_at(run, simulation)
    shares = torch.cat([state["mixing/head"].flatten() for state in run.states.values()])
    assert ((shares > 0) & (shares < 1)).any()
    for i, own in enumerate(simulation.own):  # what a client uses
        o, A, w = part(own, "old "), part(own, "mixing "), simulation.shared
        mixed = {**w, **{name: o[name] + (w[name] - o[name]) * A[name] for name in top}}
        assert_weights(algorithm.personal(run.shared, run.states[f"c{i}"], run.problems[i]), mixed)


def test_batches_follow_the_equations() -> None:
    twin, size, count = world(), 4, 9
    simulation = old_models(twin, global_sites(twin))
    simulation.play(fedala(count, BETA, seed=SEED, size=size, mixed_by=3), CHOSEN)
    algorithm = pflego.FedALA(steps=count, batch_size=size, mixing_batch=3, **PLAIN)
    assert_at(train(twin, algorithm), simulation)


def test_the_head_is_mixed_on_the_features_of_one_pass() -> None:
    twin = world()
    rows = train(twin, pflego.FedALA(steps=TAU, mixing_share=1.0, **PLAIN)).history
    assert (rows[0]["forward_passes"], rows[0]["backward_passes"]) == (TAU, TAU)  # nothing to mix yet
    assert (rows[-1]["forward_passes"], rows[-1]["backward_passes"]) == (TAU + 1, TAU)


def test_whose_shares_stay_at_one_starts_from_the_shared_model_as_in_fedavg() -> None:
    twin = world()
    ours = train(twin, pflego.FedALA(steps=TAU, mixing_lr=1e-30, **PLAIN))
    theirs = train(twin, pflego.FedAvg(steps=TAU, **PLAIN))
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)
    assert ours.evaluate() == theirs.evaluate()


def test_one_client_that_is_alone_has_nothing_to_mix() -> None:
    twin = world()
    alone = pflego.Federation([twin.federation[2]])
    ours, theirs = (
        pflego.train(alone, twin.model, kind(steps=TAU, **PLAIN), rounds=4)
        for kind in (pflego.FedALA, pflego.FedAvg)
    )
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)
    assert (ours.states["c2"]["mixing/head"] == 1).all()


def test_layers_are_modules_from_the_top() -> None:
    backbone = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 4), nn.Tanh())).double()
    model = pflego.Model(backbone, features=4)
    weights = pflego.FedALA().init_shared(model, 3, 0)
    tops = [set(pflego.FedALA(layers=p)._top(model, weights)) for p in (1, 2, 3, 9)]
    assert tops[0] == {"head"}
    assert tops[1] == {"head", "2.0.weight", "2.0.bias"}
    assert tops[2] == tops[3] == set(weights)


def test_runs_resume_to_the_bit(tmp_path: Path) -> None:
    twin, algorithm = world(), pflego.FedALA(epochs=2, batch_size=4, client_lr=BETA)
    whole = train(twin, algorithm, evaluate_every=1)
    train(twin, algorithm, rounds=2, out=tmp_path, evaluate_every=1)
    assert_identical(train(twin, algorithm, out=tmp_path, resume=True, evaluate_every=1), whole)


def test_shares_are_between_nothing_and_everything() -> None:
    run = train(world(), pflego.FedALA(steps=TAU, mixing_lr=500.0, client_lr=BETA))
    shares = torch.cat([state["mixing/head"].flatten() for state in run.states.values()]).numpy()
    assert (shares.min(), shares.max()) == (0, 1)
