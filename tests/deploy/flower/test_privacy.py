"""Privacy with clients at their own sites: what leaves them, what the server keeps to itself, and that it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

import pflego
from pflego.deploy.flower.client import app
from pflego.deploy.inspection import inspect
from pflego.exchange.privacy import gaussian
from pflego.federation.draws import cohort
from pflego.weights import Weights, norm
from tests.deploy.flower.test_interruption import NODE, PowerCut, cut_in, watched
from tests.support.grid import Answer, Node, opened
from tests.support.sites import CONFIG, NAMES, SHAPE, federation, sites, train

CLIP = 0.05
ASKED: dict[str, Any] = {
    "weighting": "equal",
    "classes": "0-4",
    "privacy": f"clip={CLIP},noise=0.5,delta=1e-3",
}


def here(noise: float, **options: Any) -> pflego.Run:
    """The same in one process, with everybody in every round."""
    return pflego.train(
        federation(),
        pflego.models.build("mlp", SHAPE, seed=5),
        pflego.FedPer(steps=5, client_lr=0.1),
        seed=5,
        weighting="equal",
        privacy=pflego.ClientPrivacy(clip=CLIP, noise=noise, delta=1e-3),
        **{"rounds": 1, **options},
    )


FEDPER: dict[str, Any] = {**ASKED, "algorithm": "fedper", "client_lr": 0.1}


class Listening:
    """A ClientApp whose replies are read along."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Weights, dict[str, Any]]] = []

    def __call__(self, message: Message, context: Context) -> Message:
        reply = app(message, context)
        self.heard.append((message.metadata.message_type, *opened(reply.content)))
        return reply


def test_nothing_leaves_a_site_but_the_contribution(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    listeners = []
    for node in nodes.values():
        listeners.append(Listening())
        node.answer = listeners[-1]
    run = train(nodes, tmp_path / "server", **ASKED)
    told = [{kind: facts for kind, _, facts in one.heard} for one in listeners]
    for facts in told:
        assert facts["query"].pop("client") in NAMES
        assert facts["query"]["samples"] == 1
        assert facts["query"]["tests"] == 0
        assert facts["query"]["classes"] == [0, 1, 2, 3, 4]
        assert facts["train"] == {"finite": True, "seconds": 0.0, "metrics": {}}
        assert facts["evaluate"] == {"samples": 0, "loss": None, "score": 0.0}
    assert all(facts == told[0] for facts in told)  # but for the weights all say the same
    assert all(row["loss"] is None and row["participants_accuracy"] is None for row in run.history)
    assert run.history[-1]["epsilon"] is not None
    assert "epsilon" in run.report(tmp_path / "report.html").read_text()


def test_sites_have_the_weights_in_the_end(tmp_path: Path) -> None:
    run = train(sites(tmp_path), tmp_path / "server", **ASKED)
    from pflego.deploy.flower.keep import last_noted

    for name in NAMES:
        noted = last_noted(tmp_path / name / "state", name)
        assert noted is not None
        shared, number, _ = noted
        assert number == 4
        assert all(torch.equal(shared[key], run.shared[key]) for key in shared)


def test_the_sum_is_that_of_one_process_and_the_noise_the_secrets(tmp_path: Path) -> None:
    ours = train(sites(tmp_path), tmp_path / "server", **FEDPER, rounds=1)
    exact = here(0.0)
    path = tmp_path / "server" / "checkpoint" / "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_bytes()
    assert len(secret) == 32
    for name, weight in exact.shared.items():
        noise = gaussian(secret, ["privacy noise", "1", "0", name], tuple(weight.shape))
        expected = weight.double() + 0.5 * CLIP / len(NAMES) * noise
        torch.testing.assert_close(ours.shared[name].double(), expected, rtol=1e-5, atol=1e-6)
    by_seed = here(0.5)  # which everybody knows
    assert norm({n: ours.shared[n] - w for n, w in by_seed.shared.items()}) > CLIP / 10


def test_cohorts_are_the_secrets_too(tmp_path: Path) -> None:
    run = train(sites(tmp_path), tmp_path / "server", **ASKED, participation="binomial:0.5", rounds=12)
    by_seed = [cohort(pflego.Binomial(0.5), NAMES, seed=5, number=t) for t in range(1, 13)]
    assert [row["participants"] for row in run.history] != [len(one) for one in by_seed]
    opened_again = pflego.open_run(tmp_path / "server")
    for number, row in enumerate(run.history, start=1):
        assert len(opened_again.participants(number)) == row["participants"]


def test_a_killed_server_goes_on_with_the_same_cohorts_and_noise(tmp_path: Path) -> None:
    asked = {**FEDPER, "participation": "binomial:0.7", "rounds": 6}
    whole = train(sites(tmp_path / "whole"), tmp_path / "one", **asked)
    nodes, out = sites(tmp_path / "cut"), tmp_path / "two"
    (out / "checkpoint").mkdir(parents=True)
    (out / "checkpoint" / "secret").write_bytes((tmp_path / "one" / "checkpoint" / "secret").read_bytes())
    in_round = next(t for t in range(2, 7) if NAMES[1000 - NODE] in whole.participants(t))
    nodes[NODE].answer = watched(cut_in(in_round))
    with pytest.raises(PowerCut):
        train(nodes, out, **asked)
    nodes[NODE].answer = app
    again = train(nodes, out, **asked)
    assert all(torch.equal(again.shared[name], w) for name, w in whole.shared.items())


def test_weights_are_on_disk_before_anybody_gets_them(tmp_path: Path) -> None:
    """A server that is cut off while it hands them over does not do the round again."""
    nodes = sites(tmp_path)
    lines: list[int] = []

    def see(message: Message) -> None:
        if message.metadata.message_type == "evaluate":
            lines.append(len((tmp_path / "server" / "metrics.jsonl").read_text().splitlines()))

    nodes[NODE].answer = watched(see)
    train(nodes, tmp_path / "server", **ASKED)
    assert lines == [2, 4]


def test_a_lost_secret_is_not_replaced(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "server", **ASKED, rounds=2)
    (tmp_path / "server" / "checkpoint" / "secret").unlink()
    with pytest.raises(pflego.FolderError, match="secret"):
        train(nodes, tmp_path / "server", **ASKED)


def test_a_checkpoint_per_round_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(pflego.SettingError, match="checkpoint_every=1"):
        train(sites(tmp_path), tmp_path / "server", **ASKED, checkpoint_every=2)


def loud(message: Message, context: Context) -> Message:
    """A client whose contribution is a million times too long."""
    from pflego.deploy.flower.messages import pack

    reply = app(message, context)
    if message.metadata.message_type == "train":
        tensors, facts = opened(reply.content)
        reply.content = pack({name: 1e6 * tensor for name, tensor in tensors.items()}, facts)
    return reply


def test_a_reply_that_is_far_too_long_is_clipped_and_not_left_out(tmp_path: Path) -> None:
    nodes: dict[int, Node] = sites(tmp_path)
    answer: Answer = loud
    nodes[NODE].answer = answer
    asked = {**FEDPER, "privacy": f"clip={CLIP},noise=0,delta=1e-3"}
    ours = train(nodes, tmp_path / "server", **asked, rounds=1)
    assert ours.history[0]["rejected"] == 0
    exact = here(0.0)
    assert 0 < norm({n: ours.shared[n] - w for n, w in exact.shared.items()}) <= CLIP / len(NAMES)


def test_a_site_refuses_classes_that_the_app_does_not_name(tmp_path: Path) -> None:
    with pytest.raises(pflego.UserError, match="0 clients are here"):
        train(sites(tmp_path), tmp_path / "server", **{**ASKED, "classes": ""}, wait=0.5)


def test_inspection_says_that_nothing_else_leaves(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    app_folder = tmp_path / "app"
    app_folder.mkdir()
    config = {name: value for name, value in {**CONFIG, **ASKED}.items() if value is not None}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in config.items())
    (app_folder / "pyproject.toml").write_text(f"[tool.flwr.app.config]\n{lines}\n")
    words = " ".join(f'{name}="{value}"' for name, value in nodes[NODE].config.items())
    seen = inspect(app_folder, words)
    assert seen.metrics == []
    assert seen.once["samples"] == 1
    assert seen.once["classes"] == [0, 1, 2, 3, 4]
    assert seen.privacy is not None
    assert seen.privacy.clip == CLIP


def test_an_operator_who_accepted_privacy_refuses_a_server_without(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    app_folder = tmp_path / "app"
    app_folder.mkdir()
    config = {name: value for name, value in {**CONFIG, **ASKED}.items() if value is not None}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in config.items())
    (app_folder / "pyproject.toml").write_text(f"[tool.flwr.app.config]\n{lines}\n")
    for node in nodes.values():
        node.config["accepts"] = str(app_folder)
    with pytest.raises(pflego.UserError, match="0 clients are here"):
        train(nodes, tmp_path / "without", wait=0.5)
    train(nodes, tmp_path / "with", **ASKED, rounds=1)
