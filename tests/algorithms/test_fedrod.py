"""Fed-RoD against its equations in NumPy float64: the balanced loss, the head beside it, and its two models."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from tests.support.reference import (
    Params,
    Site,
    World,
    assert_identical,
    assert_same_weights,
    cohorts,
    world,
)
from tests.support.rivals import (
    Simulation,
    assert_at,
    batches,
    fedrod,
    global_sites,
    local_sites,
    rod_gradients,
    two_heads,
)
from tests.support.trained import BETA, PLAIN, ROUNDS, SEED, TAU, train

CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


def sites(twin: World, labels: str) -> list[Site]:
    return local_sites(twin) if labels == "local" else global_sites(twin)


@pytest.mark.parametrize("labels", ["local", "global"])
def test_fedrod_follows_its_equations(labels: Any) -> None:
    twin = world()
    simulation = two_heads(twin, sites(twin, labels))
    simulation.play(fedrod(TAU, BETA), CHOSEN)
    run = train(twin, pflego.FedRoD(steps=TAU, labels=labels, **PLAIN))
    assert_at(run, simulation)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (TAU, TAU)


def test_a_regression_follows_them_too() -> None:
    twin = world(regression=True)
    simulation = two_heads(twin, twin.sites)
    simulation.play(fedrod(TAU, 0.05), CHOSEN)
    assert_at(train(twin, pflego.FedRoD(steps=TAU, client_lr=0.05, head_init="zeros")), simulation)


def test_batches_momentum_and_decays_follow_the_equations() -> None:
    """n_c counts all samples of a client, whatever a batch holds."""
    twin, size, epochs = world(), 4, 2
    simulation = two_heads(twin, global_sites(twin))

    def client(s: Simulation, i: int) -> Params:
        site, w = s.sites[i], {**s.shared, **s.own[i]}
        speed = {name: np.zeros_like(x) for name, x in w.items()}
        for batch in batches(SEED, s.round, i, site, size, epochs * ceil(site.n / size)):
            g = rod_gradients(w, w["own W"], site.part(batch), site.t.sum(axis=0))
            speed = {name: 0.6 * speed[name] + g[name] + 0.05 * w[name] for name in w}
            w = {name: w[name] - BETA * 0.8 ** (s.round - 1) * speed[name] for name in w}
        s.own[i] = {"own W": w.pop("own W")}
        return w

    simulation.play(client, CHOSEN)
    rule: dict[str, Any] = {"momentum": 0.6, "weight_decay": 0.05, "lr_decay": 0.8}
    assert_at(train(twin, pflego.FedRoD(epochs=epochs, batch_size=size, **rule, **PLAIN)), simulation)


def test_where_everybody_has_as_much_of_every_class_the_generic_model_is_fedavgs() -> None:
    rng = np.random.default_rng(0)
    federation = pflego.Federation(
        [pflego.Client(f"c{i}", rng.normal(size=(6 + 3 * i, 6)), np.arange(6 + 3 * i) % 3) for i in range(4)]
    )
    options: dict[str, Any] = {"rounds": 4, "participation": 3, "seed": 2}
    ours, theirs = (
        pflego.train(federation, world().model, kind(steps=TAU, **PLAIN), **options)
        for kind in (pflego.FedRoD, pflego.FedAvg)
    )
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)
    assert all(float(state["own/head"].abs().max()) > 1e-3 for state in ours.states.values())


def test_nobody_unlearns_a_class_that_it_has_not() -> None:
    twin = world()
    algorithm = pflego.FedRoD(steps=TAU, client_lr=BETA)
    first = algorithm.init_shared(twin.model, 6, SEED)["head"]
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=1, seed=SEED, participation=1)
    [[member]] = cohorts(pflego.Fixed(1), 5, rounds=1, seed=SEED)
    has = [twin.federation.classes.index(c) for c in twin.federation[member].classes.tolist()]  # type: ignore[union-attr]
    moved = (run.shared["head"] - first).abs().amax(dim=1)
    assert [k for k in range(6) if moved[k] > 0] == has


def test_two_models_are_served() -> None:
    twin = world()
    personal, generic = (
        train(twin, pflego.FedRoD(steps=TAU, serve=serve, **PLAIN)) for serve in ("personal", "generic")
    )
    assert_same_weights(personal.shared, generic.shared)
    for client in twin.federation.ids:
        head = dict(personal.personal_model(client).named_parameters())["head.weight"]
        wanted = personal.shared["head"] + personal.states[client]["own/head"]
        assert torch.equal(head, wanted[:, :-1])
        head = dict(generic.personal_model(client).named_parameters())["head.weight"]
        assert torch.equal(head, personal.shared["head"][:, :-1])


def test_runs_resume_to_the_bit(tmp_path: Path) -> None:
    twin, algorithm = world(), pflego.FedRoD(epochs=2, batch_size=4, client_lr=BETA)
    whole = train(twin, algorithm, evaluate_every=1)
    train(twin, algorithm, rounds=2, out=tmp_path, evaluate_every=1)
    assert_identical(train(twin, algorithm, out=tmp_path, resume=True, evaluate_every=1), whole)


def test_heads_that_cannot_be_added_are_refused() -> None:
    twin = world()
    model = pflego.Model(twin.model.backbone, features=4, head=lambda m, k: nn.Linear(m, k).double())
    with pytest.raises(pflego.ModelError, match="linear heads"):
        pflego.train(twin.federation, model, pflego.FedRoD(), rounds=1)
