"""A light client's rounds come to what torch's do, for every method and setting that a kit is made for."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.after.kit import Graphs, export_graphs, write_kit
from pflego.learning.streaming import Streaming
from tests.support.cases import often
from tests.support.light import engine
from tests.support.sites import federation

pytestmark = pytest.mark.usefixtures("onnx_operators")

ROUNDS = 20
WIDTH, FEATURES = 8, 12


@cache
def model(frozen: str | None = None) -> pflego.Model:
    torch.manual_seed(3)
    return pflego.Model(
        nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, FEATURES), nn.SiLU()),
        FEATURES,
        frozen=frozen,
    )


@cache
def graphs(frozen: str | None = None) -> Graphs:
    return export_graphs(model(frozen), torch.randn(16, WIDTH))


METHODS: dict[str, pflego.Algorithm] = {
    "pflego": pflego.PFLEGO(steps=10),
    "paper": pflego.PFLEGO(
        steps=5, client_lr=0.05, server_lr=0.02, server_optimizer="sgd", head_init="uniform"
    ),
    "exact": pflego.PFLEGO(
        steps=5, server_lr=0.1, server_optimizer="sgd", head_step="exact", head_init="layer"
    ),
    "one step": pflego.PFLEGO(steps=1, server_lr=0.05, server_optimizer="sgd", head_init="centred"),
    "common head": pflego.PFLEGO(steps=10, common_head=True),
    "common head, exact": pflego.PFLEGO(steps=4, common_head=True, head_step="exact", server_optimizer="sgd"),
    "decay": pflego.PFLEGO(steps=10, head_decay=0.05, server_optimizer="sgd", server_lr=0.05),
    "solved": pflego.PFLEGO(head_optimizer="solve"),
    "solved, common head": pflego.PFLEGO(head_optimizer="solve", common_head=True),
    "momentum": pflego.PFLEGO(steps=10, head_optimizer="momentum", server_optimizer="sgd", server_lr=0.05),
    "adam": pflego.PFLEGO(
        steps=10,
        head_optimizer="adam",
        client_lr=0.01,
        server_optimizer="sgd",
        server_lr=0.05,
        head_init="layer",
    ),
    "sample": pflego.PFLEGO(steps=5, sample=9, server_optimizer="sgd", server_lr=0.05),
    "fedavg": pflego.FedAvg(steps=5, client_lr=0.1),
    "fedavg, local labels": pflego.FedAvg(steps=5, client_lr=0.1, labels="local", head_init="layer"),
    "fedavg, epochs": pflego.FedAvg(
        epochs=2, batch_size=7, client_lr=0.05, lr_decay=0.9, momentum=0.5, fine_tune=1
    ),
    "fedavg, fine-tuned head": pflego.FedAvg(steps=3, client_lr=0.1, fine_tune=4, fine_tune_part="head"),
    "fedprox": pflego.FedProx(steps=5, client_lr=0.1, mu=0.5, weight_decay=0.01),
    "fedper": pflego.FedPer(steps=5, client_lr=0.1, momentum=0.5),
    "fedrep": pflego.FedRep(steps=8, client_lr=0.1, body_steps=3),
    "fedrep, batches": pflego.FedRep(steps=8, client_lr=0.1, batch_size=6, weight_decay=0.01),
}


def play(
    algorithm: pflego.Algorithm,
    kit: Path | None,
    *,
    labelled: bool = True,
    objective: str | None = None,
    evaluate_adapted: bool = False,
    streaming: Streaming = Streaming(),
    frozen: str | None = None,
) -> pflego.Run:
    """Train by torch, or by a kit."""
    return pflego.train(
        federation(classes=labelled),
        model(frozen),
        algorithm,
        rounds=ROUNDS,
        participation=3,
        evaluate_every=5,
        evaluate_adapted=evaluate_adapted,
        objective=objective,
        seed=5,
        device="cpu",
        slice_size=streaming.slice_size,
        memory=streaming.memory,
        engine="local" if kit is None else engine(kit),
    )


def assert_same(ours: pflego.Run, theirs: pflego.Run) -> None:
    """Weights to 1e-5 of their norm, figures too."""
    pairs = [
        (ours.shared, theirs.shared),
        *((ours.states[id], theirs.states[id]) for id in theirs.federation.ids),
    ]
    for found, wanted in pairs:
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert found[name].shape == tensor.shape
            assert float((found[name] - tensor).norm()) <= 1e-5 * float(tensor.norm()), name
    for row, other in zip(ours.history, theirs.history, strict=True):
        assert row.keys() == other.keys() - {
            "trunk_passes"
        }  # a full client keeps what a trunk makes of its samples
        for key in row.keys() - {"seconds"}:
            assert row[key] == pytest.approx(other[key], rel=1e-4, abs=1e-6), (key, row["round"])


def kit_of(
    folder: Path,
    algorithm: pflego.Algorithm,
    streaming: Streaming = Streaming(),
    frozen: str | None = None,
) -> Path:
    return write_kit(
        folder / "kit",
        model(frozen),
        algorithm,
        torch.zeros(1, WIDTH),
        seed=5,
        streaming=streaming,
        graphs=graphs(frozen),
    ).folder


@pytest.mark.parametrize("method", often(METHODS, "pflego"))
def test_twenty_rounds_come_to_the_same(method: str, tmp_path: Path) -> None:
    algorithm = METHODS[method]
    kit = kit_of(tmp_path, algorithm)
    ours = play(algorithm, kit, evaluate_adapted=True)
    assert_same(ours, play(algorithm, None, evaluate_adapted=True))
    assert any(
        not np.allclose(ours.shared[name], tensor) for name, tensor in model().weights().items()
    )  # something was learned


@pytest.mark.parametrize("method", often(["pflego", "common head", "fedrep"], "pflego"))
@pytest.mark.parametrize("frozen", often(["0.weight", "0", "all"], "all"))
def test_what_is_frozen_stays_in_the_graphs(frozen: str, method: str, tmp_path: Path) -> None:
    algorithm = METHODS[method]
    kit = kit_of(tmp_path, algorithm, frozen=frozen)
    assert_same(play(algorithm, kit, frozen=frozen), play(algorithm, None, frozen=frozen))


@pytest.mark.parametrize("method", often(["pflego", "solved", "common head", "fedavg", "fedper"], "pflego"))
def test_regression_too(method: str, tmp_path: Path) -> None:
    algorithm = METHODS[method]
    kit = kit_of(tmp_path, algorithm)
    assert_same(play(algorithm, kit, labelled=False), play(algorithm, None, labelled=False))


@pytest.mark.parametrize("objective", ["qfair:1.0", "cvar:0.5/0.3", "agnostic:0.1"])
@pytest.mark.parametrize("method", often(["pflego", "common head"]))
def test_an_objective_changes_what_is_sent_alike(objective: str, method: str, tmp_path: Path) -> None:
    algorithm = METHODS[method]
    kit = kit_of(tmp_path, algorithm)
    ours = play(algorithm, kit, objective=objective)
    assert_same(ours, play(algorithm, None, objective=objective))


@pytest.mark.parametrize("method", ["pflego", "fedper"])
@pytest.mark.parametrize("memory", often([3000, "unlimited", 0]))
def test_slices_and_memory_change_nothing_but_the_passes(
    method: str, memory: str | float, tmp_path: Path
) -> None:
    algorithm = METHODS[method]
    streaming = Streaming(slice_size=4, memory=memory)
    ours = play(algorithm, kit_of(tmp_path, algorithm, streaming))
    theirs = play(algorithm, None, streaming=streaming)
    assert_same(ours, theirs)
    if method == "pflego":
        passes = [row["forward_passes"] or 0 for row in ours.history]
        assert max(passes) == 1 if memory == "unlimited" else max(passes) > 1
