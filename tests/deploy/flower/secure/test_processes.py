"""Secure sums between real processes: a server killed in the middle of the stages, and a site lost between two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pflego
from pflego.codec import MessageError
from pflego.deploy.folder import write_app
from pflego.errors import FolderError
from pflego.exchange.round import Round
from pflego.federation.roster import ClientId
from pflego.files import read_tensors
from pflego.weights import Weights
from tests.deploy.flower.test_processes import learned
from tests.support.processes import NGINX, machines, until
from tests.support.sites import SHAPE, arrays, settle

SITES = ["clinic", "harbour", "mill", "school"]
ROUNDS = 3
LONG = 600.0  # seconds for what is done in ten on an idle machine


class Unheard:
    """The last site's contribution to the last round is not there."""

    def __call__(self, contribution: Weights, now: Round, client: ClientId) -> Weights:
        there = client != SITES[-1] or now.number < ROUNDS
        return contribution if there else {name: torch.zeros_like(t) for name, t in contribution.items()}


def at(folder: Path, name: str) -> tuple[str, int, str]:
    """What a site has answered last: kind, round and stage."""
    try:
        facts = read_tensors(folder / name / "state" / f"{name}.stage")[1]
        session = facts.inner("session")
        return session.text("kind"), session.whole("round", least=0), facts.text("stage")
    except (FolderError, MessageError, FileNotFoundError):
        return "", 0, ""


def history(folder: Path) -> list[dict[str, float]]:
    file = folder / "out" / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.thorough
@pytest.mark.skipif(not NGINX.exists(), reason="nginx is not installed (Debian: nginx-light)")
def test_a_server_killed_and_a_site_lost_in_the_middle_of_a_sum(tmp_path: Path) -> None:
    configs = settle(tmp_path, SITES)
    app = {
        "steps": 5, "rounds": ROUNDS, "seed": 5, "evaluate_every": 0, "device": "cpu", "out": str(tmp_path / "out"),
        "server_optimizer": "sgd", "server_lr": 0.5, "members": ", ".join(SITES), "wait": LONG, "reply-timeout": LONG,
        "secure": True, "secure-clip": 2.0,
    }  # fmt: skip
    trial = tmp_path / "trial"
    write_app(trial, app)

    def reaches(name: str, number: int, stage: str) -> Callable[[], bool]:
        return lambda: at(tmp_path, name) == ("train", number, stage)

    with machines(tmp_path) as hub:
        hub.start_server(trial)
        hub.start_proxy(trial)
        for name in SITES:
            hub.register(name)
            hub.start_site(name, trial, configs[name])
        until(
            "a site has sent its masked contribution to round 2", reaches("clinic", 2, "masked"), seconds=LONG
        )
        hub.kill("server")  # with SIGKILL: nothing of round 2 is in its checkpoint
        assert len(history(tmp_path)) == 1
        hub.start_server(trial)  # the same command again
        until(
            "the last site has shared its keys in the last round",
            reaches(SITES[-1], ROUNDS, "shares"),
            seconds=LONG,
        )
        hub.kill(SITES[-1])
        until("the last round is done", lambda: len(history(tmp_path)) == ROUNDS, seconds=LONG)
        for name in SITES[:-1]:
            hub.kill(name)

    rows = history(tmp_path)
    assert [row["missing"] for row in rows] == [0, 0, 1]
    whole = pflego.train(
        pflego.Federation([pflego.Client(name, **arrays(i)) for i, name in enumerate(SITES)]),
        pflego.models.build("mlp", SHAPE, seed=5),
        pflego.PFLEGO(steps=5, server_lr=0.5, server_optimizer="sgd"),
        rounds=ROUNDS,
        seed=5,
        evaluate_every=0,
        device="cpu",
        transforms=[Unheard()],
    )
    shared = learned(tmp_path)
    first = pflego.models.build("mlp", SHAPE, seed=5).weights()
    for name, weights in whole.shared.items():
        moved = weights - first[name]
        assert float((shared[name] - weights).norm()) < 1e-4 * float(moved.norm())
    for row, other in zip(rows[:-1], whole.history[:-1], strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)
    for name in SITES[:-1]:
        assert read_tensors(tmp_path / name / "state" / f"{name}.stage")[1].facts["party"] is None
