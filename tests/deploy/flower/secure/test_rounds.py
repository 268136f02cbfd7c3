"""Rounds of secure sums over Flower's messages: the same training, and a server that sees no contribution."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, Message

import pflego
from pflego.deploy.flower.client import app
from pflego.files import read_tensors
from pflego.training.loop import NothingLearnedWarning
from pflego.weights import Weights
from tests.deploy.flower.test_equality import state
from tests.support.cases import often
from tests.support.grid import Answer, Node, NoReplyError, opened
from tests.support.sites import NAMES, sites, train

Given = dict[str, bool | float | int | str | None]
SECURE: Given = {"secure": True, "secure-clip": 10.0}
MILL = 1000 - NAMES.index("mill")
METHODS: dict[str, Given] = {
    "pflego": {},
    "pflego, common head": {"common_head": True},
    "fedavg": {"client_lr": 0.1},
    "fedbabu": {},
    "ditto": {"client_lr": 0.1},
    "fedproto": {"client_lr": 0.1},
    "scaffold": {"client_lr": 0.1},
    "fednova": {"epochs": 2, "batch_size": 8},
    "local": {},
}


def both(tmp_path: Path, **changed: bool | float | int | str | None) -> tuple[pflego.Run, pflego.Run]:
    """The same training, with secure sums and without."""
    plain = train(sites(tmp_path / "plain"), tmp_path / "plain" / "server", **changed)
    return train(sites(tmp_path / "secure"), tmp_path / "secure" / "server", **SECURE, **changed), plain


def assert_near(ours: Weights, theirs: Weights, first: Weights) -> None:
    """Shared weights moved the same way, to a part of how far they moved."""
    assert ours.keys() == theirs.keys()
    moved = {name: theirs[name] - first[name] for name in theirs if theirs[name].is_floating_point()}
    far = max([1e-9, *(float(tensor.norm()) for tensor in moved.values())])
    for name in moved:
        assert float((ours[name] - theirs[name]).norm()) < 1e-3 * far, name


@pytest.mark.parametrize("method", often(METHODS, "fedavg"))
def test_training_is_that_of_plain_sums(method: str, tmp_path: Path) -> None:
    """Adam takes no part in it: it would make a step of full length out of a rounding error."""
    given = {"algorithm": method.partition(",")[0], "participation": 4, **METHODS[method]}
    if given["algorithm"] == "pflego":
        given |= {"server_optimizer": "sgd", "server_lr": 0.1}
    ours, theirs = both(tmp_path, **given)
    assert ours.history[-1]["missing"] == 0
    assert_near(ours.shared, theirs.shared, {n: torch.zeros_like(t) for n, t in theirs.shared.items()})
    for row, other in zip(ours.history, theirs.history, strict=True):
        assert row["clipped"] == 0
        for key in ("round", "loss", "participants_accuracy", "everyone_accuracy", "missing", "rejected"):
            assert row.get(key) == (other.get(key) and pytest.approx(other[key], rel=1e-3)), key
    for name in NAMES:
        one, other_state = state(tmp_path / "secure", name), state(tmp_path / "plain", name)
        for key, tensor in other_state.items():
            torch.testing.assert_close(one[key], tensor, rtol=1e-3, atol=1e-4)


def test_the_first_step_errs_by_less_than_a_ten_thousandth(tmp_path: Path) -> None:
    """One step of SGD: what was learned is the sum itself."""
    ours, theirs = both(tmp_path, rounds=1, server_optimizer="sgd", server_lr=1.0)
    first = pflego.models.build("mlp", (8,), seed=5).weights()
    for name in first:
        step, exact = ours.shared[name] - first[name], theirs.shared[name] - first[name]
        assert float((step - exact).norm()) < 1e-4 * float(exact.norm())


def test_a_clip_shortens_at_the_site_and_is_counted(tmp_path: Path) -> None:
    clip = 0.01
    run = train(
        sites(tmp_path), tmp_path / "server", rounds=1, server_optimizer="sgd", server_lr=1.0,
        **{**SECURE, "secure-clip": clip},
    )  # fmt: skip
    first = pflego.models.build("mlp", (8,), seed=5).weights()
    step = sum(float((run.shared[name] - first[name]).square().sum()) for name in first) ** 0.5
    assert 0 < step <= clip * (1 + 1e-6)
    assert run.history[0]["clipped"] == len(NAMES)


def watched(see: Callable[[str, Message], None]) -> Answer:
    """A ClientApp beside which something happens before it answers."""

    def answer(message: Message, context: Context) -> Message:
        see(message.metadata.message_type, message)
        return app(message, context)

    return answer


def overheard(nodes: dict[int, Node]) -> list[tuple[str, Weights, object]]:
    """Write down every answer of every node."""
    heard: list[tuple[str, Weights, object]] = []

    def listening(message: Message, context: Context) -> Message:
        reply = app(message, context)
        heard.append((message.metadata.message_type, *opened(reply.content)))
        return reply

    for node in nodes.values():
        node.answer = listening
    return heard


def test_what_leaves_a_site_are_keys_shares_and_noise(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    heard = overheard(nodes)
    train(nodes, tmp_path / "server", rounds=2, **SECURE)
    kinds = {kind for kind, _, _ in heard}
    assert kinds == {"query", "train.keys", "train.shares", "train.masked", "train.unmask"}
    facts = {kind: set(told) for kind, _, told in heard if isinstance(told, dict)}
    assert facts["train.keys"] == {"encryption", "mask", "signature"}
    assert facts["train.shares"] == {"tokens", "commitment"}
    assert facts["train.masked"] == set()
    assert facts["train.unmask"] == {"seeds", "keys"}
    sent = [tensors["masked"].numpy() for kind, tensors, _ in heard if kind == "train.masked"]
    assert len(sent) == (2 + 1) * len(NAMES)  # two rounds, and everybody's evaluation
    large = np.concatenate([octets for octets in sent if len(octets) > 1000])
    counts = np.bincount(large, minlength=256) * 256 / len(large)
    assert float(((counts - 1) ** 2).sum()) * len(large) / 256 < 370  # chi-squared, 255 degrees of freedom
    assert len({octets.tobytes() for octets in sent}) == len(sent)


def test_secrets_are_for_their_owner_and_gone_after_the_round(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    modes, secrets = set(), set()

    def look(kind: str, message: Message) -> None:
        for file in tmp_path.rglob("*.stage"):
            modes.add(stat.S_IMODE(file.stat().st_mode))
            facts = read_tensors(file)[1].facts
            party = facts["party"]
            assert (party is None) == (facts["stage"] == "unmask")
            if isinstance(party, dict):
                secrets.add(party["mask_secret"])

    nodes[MILL].answer = watched(look)
    train(nodes, tmp_path / "server", rounds=2, **SECURE)
    assert modes == {0o600}
    assert len(secrets) >= 3  # new ones for every sum
    files = list(tmp_path.rglob("*.stage"))
    assert len(files) == len(NAMES)
    for file in files:
        assert read_tensors(file)[1].facts["party"] is None
        assert not any(secret in file.read_text(errors="replace") for secret in secrets)


@pytest.mark.parametrize("stage", ["train.keys", "train.shares", "train.masked", "train.unmask"])
@pytest.mark.parametrize("how", often(["silence", "error"]))
def test_a_site_lost_before_any_stage_is_missing_and_the_sum_is_right(
    stage: str, how: str, tmp_path: Path
) -> None:
    nodes = sites(tmp_path)

    def lose(kind: str, message: Message) -> None:
        if kind == stage:
            nodes.pop(MILL, None)
            raise NoReplyError if how == "silence" else RuntimeError("out of memory")

    nodes[MILL].answer = watched(lose)
    given: Given = {"rounds": 1, "server_optimizer": "sgd", "server_lr": 1.0, "evaluate_every": 0}
    ours = train(nodes, tmp_path / "server", **SECURE, **given)
    others = sites(tmp_path / "plain")

    def silent(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            raise RuntimeError("out of memory")
        return app(message, context)

    if stage != "train.unmask":  # its masked contribution had arrived: it is in the sum
        others[MILL].answer = silent
    theirs = train(others, tmp_path / "plain" / "server", **given)
    assert ours.history[0]["missing"] == int(stage != "train.unmask") == theirs.history[0]["missing"]
    first = pflego.models.build("mlp", (8,), seed=5).weights()
    assert_near(ours.shared, theirs.shared, first)


def test_with_fewer_than_needed_nothing_is_unmasked_and_the_weights_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    heard = overheard(nodes)

    def broken(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train.masked":
            raise RuntimeError("out of memory")
        return app(message, context)

    for number in (1000, 999):
        nodes[number].answer = broken
    with caplog.at_level("WARNING", "flwr.pflego"), pytest.warns(NothingLearnedWarning):
        run = train(nodes, tmp_path / "server", rounds=2, evaluate_every=0, **SECURE)
    assert [row["missing"] for row in run.history] == [5, 5]
    assert "train.unmask" not in {kind for kind, _, _ in heard}
    assert "a secure sum needs 4: nothing is unmasked" in caplog.text
    assert all(
        torch.equal(t, run.shared[n]) for n, t in pflego.models.build("mlp", (8,), seed=5).weights().items()
    )


def test_with_nothing_of_use_for_rounds_the_run_stops(tmp_path: Path) -> None:
    with pytest.raises(pflego.UserError, match="too few clients stayed for a secure sum"):
        train(sites(tmp_path), tmp_path / "server", **SECURE, **{"secure-least": 6})


class PowerCut(BaseException):
    """The server's process ends."""


THREE: Given = {"rounds": 3, "evaluate_every": 0, "server_optimizer": "sgd", "server_lr": 0.1}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """What three rounds of plain sums come to."""
    folder = tmp_path_factory.mktemp("plain")
    return train(sites(folder), folder / "server", **THREE).shared


@pytest.mark.parametrize("stage", ["train.keys", "train.shares", "train.masked", "train.unmask"])
@pytest.mark.parametrize("site", often([MILL, 1000, 996]))  # some, nobody or all others have answered it
def test_a_server_killed_in_any_stage_goes_on_as_if_nothing_had_happened(
    stage: str, site: int, plain: Weights, tmp_path: Path
) -> None:
    nodes = sites(tmp_path)
    asked: list[str] = []

    def cut(kind: str, message: Message) -> None:
        asked.append(kind)
        if kind == stage and asked.count(stage) == 2:  # in the second round
            raise PowerCut

    nodes[site].answer = watched(cut)
    with pytest.raises(PowerCut):
        train(nodes, tmp_path / "server", **SECURE, **THREE)
    nodes[site].answer = app
    ours = train(nodes, tmp_path / "server", **SECURE, **THREE)
    assert [row["missing"] for row in ours.history] == [0, 0, 0]
    assert_near(ours.shared, plain, pflego.models.build("mlp", (8,), seed=5).weights())


def test_a_server_killed_in_an_evaluation_has_the_sum_of_the_round_still(tmp_path: Path) -> None:
    nodes = sites(tmp_path)

    def cut(kind: str, message: Message) -> None:
        if kind == "train.masked" and opened(message.content)[1]["session"]["kind"] == "evaluate":
            raise PowerCut

    given: Given = {"rounds": 1, "evaluate_every": 1, "server_optimizer": "sgd", "server_lr": 0.1}
    nodes[MILL].answer = watched(cut)
    with pytest.raises(PowerCut):
        train(nodes, tmp_path / "server", **SECURE, **given)
    nodes[MILL].answer = app
    ours = train(nodes, tmp_path / "server", **SECURE, **given)
    theirs = train(sites(tmp_path / "plain"), tmp_path / "plain" / "server", **given)
    assert ours.history[0]["missing"] == 0
    assert ours.history[0]["everyone_accuracy"] == pytest.approx(theirs.history[0]["everyone_accuracy"])
    assert_near(ours.shared, theirs.shared, pflego.models.build("mlp", (8,), seed=5).weights())


def test_everybodys_results_are_known_together_and_nobodys_alone(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, rounds=2, participation=3)
    assert ours.history[1]["everyone_accuracy"] == pytest.approx(theirs.history[1]["everyone_accuracy"])
    assert ours.evaluations[2] == [None] * len(NAMES)
    assert all(value is not None for value in theirs.evaluations[2])
    [line] = (tmp_path / "secure" / "server" / "checkpoint" / "clients.jsonl").read_text().splitlines()
    assert json.loads(line)["figures"] == [None] * len(NAMES)
    page = ours.report(tmp_path / "report.html").read_text()
    assert "clinic" in page
    assert [row["accuracy"] for row in ours.evaluate()] == [None] * len(NAMES)
