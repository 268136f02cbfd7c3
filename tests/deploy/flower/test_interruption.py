"""Servers that stop, sites that go and come back: what was done is not lost, and repeats are exact."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message

import pflego
from pflego.deploy.flower.client import app
from tests.deploy.flower.test_equality import assert_close, assert_same_history, here, state
from tests.support.grid import Answer, Node, NoReplyError, opened
from tests.support.sites import NAMES, PATIENCE, sites, train

AWAY = "mill"
NODE = 1000 - NAMES.index(AWAY)


class PowerCut(BaseException):
    """The server's process ends."""


def watched(see: Callable[[Message], None]) -> Answer:
    """A ClientApp beside which something happens once it has done its work."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        see(message)
        return reply

    return answer


def round_of(message: Message) -> int:
    if message.metadata.message_type != "train":
        return 0
    number = opened(message.content)[1]["round"]["number"]
    assert isinstance(number, int)
    return number


def cut_in(number: int) -> Callable[[Message], None]:
    def see(message: Message) -> None:
        if round_of(message) == number:
            raise PowerCut

    return see


def test_a_killed_server_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    nodes[NODE].answer = watched(cut_in(3))  # some have done round 3, some have not
    with pytest.raises(PowerCut):
        train(nodes, tmp_path / "server")
    nodes[NODE].answer = app
    ours = train(nodes, tmp_path / "server")
    theirs = here("pflego", participation=5)
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
    for name in NAMES:
        assert_close(state(tmp_path, name), theirs.states[name])


def test_a_finished_run_can_go_on_for_longer(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "server", participation=3, rounds=2)
    assert_close(train(nodes, tmp_path / "server", participation=3).shared, here("pflego").shared)


def test_a_new_run_begins_with_new_heads_and_leaves_the_old_ones(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    for node in nodes.values():
        node.config["runs"] = 2
    first = train(nodes, tmp_path / "one", participation=3)
    [old] = (tmp_path / AWAY / "state").glob("*.safetensors")
    content = old.read_bytes()
    second = train(nodes, tmp_path / "two", participation=3)
    assert_close(second.shared, first.shared)
    assert len(list((tmp_path / AWAY / "state").glob("*.safetensors"))) == 2
    assert old.read_bytes() == content


def test_a_site_that_vanishes_in_a_round_is_missing_until_it_is_back(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    gone: list[Node] = []

    def leave(message: Message) -> None:
        if round_of(message) == 2:
            gone.append(nodes.pop(NODE))
            raise NoReplyError

    def come_back(message: Message) -> None:
        if round_of(message) == 4 and gone:
            nodes[7] = gone.pop()  # with another number
            nodes[7].answer = app

    nodes[NODE].answer = watched(leave)
    first = min(number for number in nodes if number != NODE)
    nodes[first].answer = watched(come_back)
    run = train(nodes, tmp_path / "server", rounds=5, missing="renormalise")
    assert [row["missing"] for row in run.history] == [0, 1, 1, 1, 0]
    assert nodes[7].asked[-2:] == ["train", "evaluate"]
    kept = state(tmp_path, AWAY, "0")["head"]  # as before the first exchange
    assert not torch.equal(kept, torch.zeros_like(kept))


def test_a_site_that_restarts_in_a_round_is_asked_again_and_gives_the_same_answer(tmp_path: Path) -> None:
    nodes = sites(tmp_path)

    def restart(message: Message) -> None:
        if round_of(message) == 2 and nodes[NODE].since == "2026-01-01":
            nodes[NODE].since = "2026-01-02"
            raise NoReplyError

    nodes[NODE].answer = watched(restart)
    ours = train(nodes, tmp_path / "server")
    assert_close(ours.shared, here("pflego", participation=5).shared)
    assert nodes[NODE].asked.count("train") == 5
    assert nodes[NODE].asked.count("query") == 2


def test_with_nobody_there_the_server_stops_and_no_round_is_lost(tmp_path: Path) -> None:
    nodes = sites(tmp_path)

    def leave(message: Message) -> None:
        if round_of(message) == 2:
            nodes.clear()

    everybody = dict(nodes)
    nodes[996].answer = watched(leave)  # the last to be asked
    with pytest.raises(pflego.UserError, match="none of the 5 clients is connected"):
        train(nodes, tmp_path / "server", wait=0.5, **{"reply-timeout": 0.2})
    rows = (tmp_path / "server" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 1
    everybody[996].answer = app
    assert len(train(everybody, tmp_path / "server").history) == 4


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda node: node.config.update({"client-id": "stranger"}),
            "'stranger' is not part of this federation",
        ),
        (lambda node: setattr(node, "key", b"stolen"), "'mill' belongs to another node's key"),
    ],
)
def test_who_belongs_to_a_run_is_settled_when_it_begins(
    change: Callable[[Node], None], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "server", rounds=1)
    change(nodes[NODE])
    with caplog.at_level("WARNING", "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=2, wait=PATIENCE)
    assert run.history[1]["missing"] == 1
    assert why in caplog.text


def test_two_servers_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pflego.deploy.flower.server._LOCK", 0.1)
    nodes = sites(tmp_path)

    def again(message: Message) -> None:
        if round_of(message) == 1:
            with (
                ThreadPoolExecutor(1) as elsewhere,
                pytest.raises(pflego.FolderError, match="another process is at work"),
            ):
                elsewhere.submit(train, dict(nodes), tmp_path / "server").result()

    nodes[NODE].answer = watched(again)
    assert len(train(nodes, tmp_path / "server", rounds=1).history) == 1
