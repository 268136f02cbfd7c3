"""FedOpt's four servers against NumPy float64, and the methods that they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego.exchange.round import Round
from tests.support.reference import (
    Params,
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
    differences,
    fedavg,
    fedopt,
    global_sites,
    shared_head,
    steps,
)

TAU, BETA, ROUNDS, SEED = 5, 0.15, 7, 4
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)
KINDS = ["adam", "yogi", "adagrad", "momentum"]


def method(**settings: Any) -> pflego.FedOpt:
    return pflego.FedOpt(**{"steps": TAU, "client_lr": BETA, "head_init": "zeros", **settings})


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    settings = {"rounds": ROUNDS, "participation": 3, "seed": SEED, **options}
    return pflego.train(twin.federation, twin.model, algorithm, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_fedopt_follows_its_equations(kind: Any) -> None:
    twin = world()
    simulation = shared_head(twin, global_sites(twin))
    beta1 = 0.0 if kind == "adagrad" else 0.9  # as the authors have them
    simulation.play(differences(fedavg(TAU, BETA)), CHOSEN, server=fedopt(kind, 0.05, beta1=beta1))
    assert_at(train(twin, method(server_optimizer=kind, server_lr=0.05)), simulation)


@pytest.mark.parametrize("kind", KINDS)
def test_its_constants_may_be_others(kind: Any) -> None:
    twin, given = world(), {"beta1": 0.6, "beta2": 0.8, "eps": 0.02}
    simulation = shared_head(twin, global_sites(twin))
    simulation.play(differences(fedavg(TAU, BETA)), CHOSEN, server=fedopt(kind, 0.05, **given))
    assert_at(train(twin, method(server_optimizer=kind, server_lr=0.05, **given)), simulation)


def test_yogi_falls_as_well_as_it_rises() -> None:
    """By hand: D^2 = 4 above v = 1 adds a hundredth of it, D^2 = 0.04 below takes one away."""
    algorithm = method(server_optimizer="yogi", server_lr=1.0, beta1=0.0, eps=0.5)
    shared = {"w": torch.tensor([0.0, 0.0], dtype=torch.float64)}
    server = {"w/square": torch.ones(2, dtype=torch.float64), "w/mean": torch.zeros(2, dtype=torch.float64)}
    sent = {"w": torch.tensor([2.0, 0.2], dtype=torch.float64)}
    moved, kept = algorithm.server_step(Round(1), shared, server, sent)
    assert kept["w/square"].tolist() == pytest.approx([1.04, 0.9996], rel=1e-12)
    assert moved["w"].tolist() == pytest.approx([2 / (1.04**0.5 + 0.5), 0.2 / (0.9996**0.5 + 0.5)], rel=1e-12)


def test_momentum_of_nothing_at_rate_one_is_fedavg() -> None:
    twin = world()
    ours = train(twin, method(server_optimizer="momentum", server_lr=1.0, beta1=0.0))
    theirs = train(twin, pflego.FedAvg(steps=TAU, client_lr=BETA, head_init="zeros"))
    assert_same_weights(ours.shared, theirs.shared)


def test_with_mini_batches() -> None:
    twin, size = world(), 4

    def client(s: Simulation, i: int) -> Params:
        drawn = batches(SEED, s.round, i, s.sites[i], size, TAU)
        w = steps(s.shared, s.sites[i], TAU, rate=BETA, momentum=0.5, batches=drawn)
        return s.moved(w)

    simulation = shared_head(twin, global_sites(twin))
    simulation.play(client, CHOSEN, server=fedopt("adam", 0.05))
    assert_at(train(twin, method(batch_size=size, momentum=0.5, server_lr=0.05)), simulation)


def test_the_servers_memory_is_resumed_to_the_bit(tmp_path: Path) -> None:
    twin, algorithm = world(), method(server_optimizer="yogi", batch_size=4)
    whole = train(twin, algorithm, evaluate_every=1)
    options: dict[str, Any] = {"evaluate_every": 1, "out": tmp_path}
    train(twin, algorithm, rounds=3, **options)
    assert_identical(train(twin, algorithm, resume=True, **options), whole)


def test_a_step_is_as_long_as_its_rate_says_whatever_the_clients_rate() -> None:
    """With v far above eps, Adam's first step is rho (1 - b1) / sqrt(1 - b2) in every weight: rho itself."""
    twin = world()
    run = train(twin, method(server_lr=0.05, client_lr=1.0, eps=1e-12), rounds=1)
    start = method().init_shared(twin.model, 6, SEED)
    moved = np.abs((run.shared["0.weight"] - start["0.weight"]).numpy())
    assert moved == pytest.approx(np.full_like(moved, 0.05), rel=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"server_optimizer": "sgd"}, {"beta1": 1.0}, {"beta2": -0.1}, {"eps": 0.0}]
)
def test_wrong_hyperparameters_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(pflego.SettingError, match=next(iter(wrong))):
        method(**wrong)
