"""FedPAC against its equations in NumPy float64: backbones, means of classes, and heads that the server combines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.algorithms.fedpac import head_shares
from pflego.exchange.round import by_client, of_client
from pflego.federation.network import Network
from pflego.federation.roster import ClientId
from pflego.learning.problems import Problems
from pflego.weights import Weights
from tests.support.reference import (
    F64,
    Params,
    World,
    assert_identical,
    cohorts,
    distance,
    world,
)
from tests.support.rivals import (
    Simulation,
    assert_at,
    batches,
    combined_heads,
    fedpac,
    steps,
    sums_of_classes,
    towards_means,
)

TAU, BODY, BETA, ROUNDS, SEED, MU = 6, 2, 0.15, 6, 4, 1.5
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)
OPTIONS: dict[str, Any] = {
    "steps": TAU,
    "body_steps": BODY,
    "client_lr": BETA,
    "mu": MU,
    "head_init": "zeros",
}


class Answers(pflego.FedPAC):
    """Notes what clients were answered, by round and client."""

    def answers(
        self, now: pflego.Round, shared: Weights, server: Weights, clients: Sequence[ClientId]
    ) -> Mapping[ClientId, Weights]:
        answered = super().answers(now, shared, server, clients)
        HEARD.append({client: head["head"].numpy() for client, head in answered.items()})
        return answered


HEARD: list[dict[ClientId, F64]] = []


def train(twin: World, algorithm: pflego.Algorithm, rounds: int = ROUNDS, **options: Any) -> pflego.Run:
    return pflego.train(
        twin.federation, twin.model, algorithm, rounds=rounds, participation=3, seed=SEED, **options
    )


def test_it_follows_its_equations() -> None:
    twin = world()
    simulation = combined_heads(twin)
    simulation.play(fedpac(TAU, BETA, mu=MU, body=BODY), CHOSEN)
    run = train(twin, pflego.FedPAC(**OPTIONS))
    assert_at(run, simulation)
    assert (run.history[-1]["forward_passes"], run.history[-1]["backward_passes"]) == (BODY + 2, BODY)
    mixed = [np.abs(head - simulation.own[i]["W"]).max() for i, head in simulation.heads.items()]
    assert max(mixed) > 1e-3  # heads are not the clients' own


def test_every_client_is_answered_with_its_own_combination() -> None:
    twin = world()
    simulation = combined_heads(twin)
    HEARD.clear()
    train(twin, Answers(**OPTIONS))
    for t, members in enumerate(CHOSEN):
        heard = HEARD[t]
        assert set(heard) == {f"c{i}" for i in members if i in simulation.heads}
        for i in members:
            if i in simulation.heads:
                assert distance(torch.from_numpy(heard[f"c{i}"]), simulation.heads[i]) < 1e-10
        simulation.round = t  # play counts from 1
        simulation.play(fedpac(TAU, BETA, mu=MU, body=BODY), [members])
    assert any(HEARD)


def test_lost_replies_are_in_nobodys_combination() -> None:
    twin = world()

    def arrives(i: int, t: int) -> bool:
        return Network(dropout=0.4).delivers(samples=1, passes=1, client=f"c{i}", number=t, seed=SEED)

    simulation = combined_heads(twin)
    arrived = simulation.play(fedpac(TAU, BETA, mu=MU, body=BODY), CHOSEN, arrives=arrives)
    assert {1, 2} & set(arrived)
    assert_at(train(twin, pflego.FedPAC(**OPTIONS), dropout=0.4), simulation)


def test_epochs_of_batches_and_a_rate_of_the_heads_own_follow_the_equations() -> None:
    twin, size = world(), 4
    rule: dict[str, Any] = {"momentum": 0.5, "decay": 0.05}

    def client(s: Simulation, i: int) -> Params:
        whole = fedpac(1, 0.0, mu=MU, body=1)(s, i)  # statistics, at the weights that were received
        site, epoch = s.sites[i], ceil(s.sites[i].n / size)
        given = s.heads.get(i, s.shared["W"])
        w = {"V": s.shared["V"], "v": s.shared["v"], "W": given}
        drawn = batches(SEED, s.round, i, site, size, epoch, "head batches")
        w = steps(w, site, epoch, rate=0.4, names="W", batches=drawn, **rule)
        drawn = batches(SEED, s.round, i, site, size, 2 * epoch)
        term = towards_means(s, i, MU)
        w = steps(w, site, 2 * epoch, rate=BETA, names="Vv", batches=drawn, on_features=term, **rule)
        s.own[i] = {"W": w["W"]}
        return {**whole, "V": w["V"], "v": w["v"], **sums_of_classes(s, i, w), "W_i": w["W"] - given}

    simulation = combined_heads(twin)
    simulation.play(client, CHOSEN)
    method = pflego.FedPAC(
        epochs=3,
        body_steps=2,
        batch_size=size,
        client_lr=BETA,
        head_lr=0.4,
        mu=MU,
        momentum=0.5,
        weight_decay=0.05,
        head_init="zeros",
    )
    assert_at(train(twin, method), simulation)


def test_one_client_is_fedrep_with_a_pull() -> None:
    """There is nobody else's head to combine with: with mu = 0 it is FedRep that has all the outputs."""
    twin = world()
    alone = pflego.Federation([twin.federation[2]])
    ours = pflego.train(alone, twin.model, pflego.FedPAC(**{**OPTIONS, "mu": 0.0}), rounds=4)
    rest = {name: value for name, value in OPTIONS.items() if name != "mu"}
    theirs = pflego.train(alone, twin.model, pflego.FedRep(**rest), rounds=4)
    for name in ("0.weight", "0.bias"):
        assert distance(ours.shared[name], theirs.shared[name].numpy()) < 1e-10
    assert distance(ours.states["c2"]["head"], theirs.states["c2"]["head"].numpy()) < 1e-10


def test_clients_of_a_kind_share_their_heads() -> None:
    """Two kinds of clients with other classes each, much data: a head comes from clients of the kind."""
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(4, 30)) * 3
    biases = []
    for i in range(6):
        h = np.zeros((4, 30))
        own = [0, 1] if i < 3 else [2, 3]
        h[own] = kinds[own] / 2 + 0.01 * rng.normal(size=(2, 30))
        biases.append(h.ravel())
    shares = head_shares(torch.from_numpy(np.array(biases)), torch.full((6,), 0.3, dtype=torch.float64))
    assert float(shares[:3, 3:].max()) < 0.01
    assert float(shares[3:, :3].max()) < 0.01
    assert torch.allclose(shares[:3, :3], torch.full((3, 3), 1 / 3, dtype=torch.float64), atol=0.1)


def test_it_resumes_to_the_bit_with_the_heads_of_the_server(tmp_path: Path) -> None:
    twin, method = world(), pflego.FedPAC(**OPTIONS, batch_size=5)
    whole = train(twin, method, evaluate_every=1)
    train(twin, method, rounds=2, out=tmp_path, evaluate_every=1)
    assert_identical(train(twin, method, out=tmp_path, evaluate_every=1, resume=True), whole)


def test_heads_of_any_kind_are_combined() -> None:
    federation = pflego.load("digits", clients=4, classes_per_client=3)

    def head(features: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 12), nn.Tanh(), nn.Linear(12, outputs))

    model = pflego.Model(nn.Sequential(nn.Linear(64, 16), nn.ReLU()), features=16, head=head)
    run = pflego.train(federation, model, pflego.FedPAC(steps=20, client_lr=0.1), rounds=6)
    assert (run.history[-1]["loss"] or 9) < (run.history[0]["loss"] or 0)


def test_what_is_sent_down_is_counted_once() -> None:
    """The answer takes the place of the first head: as many bytes with it as without."""
    run = train(world(), pflego.FedPAC(**OPTIONS))
    assert len({row["bytes_down"] for row in run.history}) == 1
    problem = Problems(run.federation, run.model, labels="global")[0]
    numbers = 4 * 6 + 4 + problem.outputs * (4 + 1) + problem.outputs * (4 + 1)
    assert run.history[0]["bytes_down"] == 3 * 8 * numbers


def test_names_of_clients_are_told_apart() -> None:
    ids: list[Any] = [1, "1", "a/b", "line\nbreak"]
    weights = {of_client("head", client): torch.tensor(float(n)) for n, client in enumerate(ids)}
    found = by_client({**weights, "0.weight": torch.zeros(2)})
    assert {client: float(own["head"]) for client, own in found.items()} == dict(
        zip(ids, range(4), strict=True)
    )


@pytest.mark.parametrize("wrong", [{"head_lr": 0.0}, {"mu": -1.0}, {"steps": 2, "body_steps": 3}])
def test_wrong_hyperparameters_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(pflego.SettingError, match=list(wrong)[-1]):
        pflego.FedPAC(**wrong)
