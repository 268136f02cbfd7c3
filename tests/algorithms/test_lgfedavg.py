"""LG-FedAvg against its equations in NumPy float64, and its start from a model that FedAvg has trained."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import pytest

import pflego
from tests.support.reference import Params, assert_identical, assert_same_weights, cohorts, world
from tests.support.rivals import (
    NAMES,
    Simulation,
    assert_at,
    batches,
    global_sites,
    lgfedavg,
    local_sites,
    own_backbones,
    steps,
)
from tests.support.trained import BETA, PLAIN, ROUNDS, SEED, TAU, train

CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


@pytest.mark.parametrize("labels", ["local", "global"])
def test_lgfedavg_follows_its_equations(labels: Any) -> None:
    twin = world()
    simulation = own_backbones(twin, local_sites(twin) if labels == "local" else global_sites(twin))
    simulation.play(lgfedavg(TAU, BETA), CHOSEN)
    run = train(twin, pflego.LGFedAvg(steps=TAU, labels=labels, **PLAIN))
    assert_at(run, simulation)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (TAU, TAU)


def test_batches_momentum_and_decays_follow_the_equations() -> None:
    twin, size, epochs = world(), 4, 2
    simulation = own_backbones(twin, global_sites(twin))

    def client(s: Simulation, i: int) -> Params:
        site = s.sites[i]
        count = epochs * ceil(site.n / size)
        w = steps(
            {**s.shared, **s.own[i]},
            site,
            count,
            rate=BETA * 0.8 ** (s.round - 1),
            momentum=0.6,
            decay=0.05,
            batches=batches(SEED, s.round, i, site, size, count),
        )
        s.own[i] = {"V": w["V"], "v": w["v"]}
        return {"W": w["W"]}

    simulation.play(client, CHOSEN)
    rule: dict[str, Any] = {"momentum": 0.6, "weight_decay": 0.05, "lr_decay": 0.8}
    assert_at(train(twin, pflego.LGFedAvg(epochs=epochs, batch_size=size, **rule, **PLAIN)), simulation)


def test_of_one_client_it_is_fedavg() -> None:
    twin = world()
    alone = pflego.Federation([twin.federation[2]])
    ours, theirs = (
        pflego.train(alone, twin.model, kind(steps=TAU, **PLAIN), rounds=4)
        for kind in (pflego.LGFedAvg, pflego.FedAvg)
    )
    assert_same_weights({**ours.states["c2"], **ours.shared}, theirs.shared, within=1e-12)


def test_it_starts_from_a_model_that_fedavg_has_trained() -> None:
    """As the method's page says."""
    twin = world()
    first = train(twin, pflego.FedAvg(steps=TAU, **PLAIN))
    start = pflego.Model(first.personal_model("c0").backbone, features=twin.model.features)
    algorithm = pflego.LGFedAvg(
        steps=TAU, client_lr=BETA, head_init=lambda rows, columns, generator: first.shared["head"]
    )
    run = pflego.train(twin.federation, start, algorithm, rounds=ROUNDS, participation=3, seed=SEED)
    simulation = own_backbones(twin, global_sites(twin))
    trained = {NAMES[name]: w.numpy() for name, w in first.shared.items()}
    simulation.shared = {"W": trained["W"]}
    simulation.own = [{"V": trained["V"], "v": trained["v"]} for _ in twin.sites]
    simulation.play(lgfedavg(TAU, BETA), CHOSEN)
    assert_at(run, simulation)


def test_runs_resume_to_the_bit_and_send_the_head_alone(tmp_path: Path) -> None:
    twin, algorithm = world(), pflego.LGFedAvg(epochs=2, batch_size=4, client_lr=BETA)
    whole = train(twin, algorithm, evaluate_every=1)
    train(twin, algorithm, rounds=2, out=tmp_path, evaluate_every=1)
    assert_identical(train(twin, algorithm, out=tmp_path, resume=True, evaluate_every=1), whole)
    assert whole.history[0]["bytes_up"] == whole.history[0]["bytes_down"] == 3 * 6 * 5 * 8
