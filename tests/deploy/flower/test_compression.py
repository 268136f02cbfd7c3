"""Compression on Flower: small messages, the same weights, memory on the site's own disk, nothing believed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message

from pflego.deploy.flower.client import app
from pflego.deploy.flower.messages import payload
from pflego.deploy.flower.site_config import Assignment
from pflego.exchange.compression import compression_of, memory_of
from pflego.weights import Weights, nbytes
from tests.deploy.flower.test_equality import METHODS, assert_close, assert_same_history, here, state
from tests.deploy.flower.test_interruption import AWAY, NODE, PowerCut, cut_in, watched
from tests.support.cases import often
from tests.support.grid import Answer, alter, opened
from tests.support.sites import NAMES, sites, train

KINDS = ["quantise:4", "random:0.2", "random:0.2/common", "top:0.1", "top:0.01", "sign"]


@pytest.mark.parametrize("compression", often(KINDS))
@pytest.mark.parametrize(
    "method", often(["pflego", "pflego, rates from the theory", "fedavg", "feddane"], "pflego")
)
def test_weights_memory_and_bytes_equal_those_of_the_local_engine(
    method: str, compression: str, tmp_path: Path
) -> None:
    asked = {**METHODS[method], "algorithm": method.partition(",")[0], "compression": compression}
    ours = train(sites(tmp_path), tmp_path / "server", **asked, participation=3)
    theirs = here(method, compression=compression)
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)  # bytes_up too
    kept = [memory_of(state(tmp_path, name)) for name in NAMES]
    assert any(kept) == (compression.partition(":")[0] in ("top", "sign"))
    for name in NAMES:
        assert_close(state(tmp_path, name), theirs.states[name])
    plain = here(method).history[-1]["bytes_up"]
    assert ours.history[-1]["bytes_up"] < 0.3 * plain  # type: ignore[operator]


def weighed(sizes: list[int]) -> Answer:
    """A ClientApp whose replies are put on the scales."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            sizes.append(len(payload(reply.content)))
        return reply

    return answer


def test_messages_are_really_small(tmp_path: Path) -> None:
    found: dict[str, int] = {}
    for compression in (None, "quantise:4", "sign", "top:0.01"):
        sizes: list[int] = []
        nodes = sites(tmp_path / str(compression))
        nodes[NODE].answer = weighed(sizes)
        run = train(nodes, tmp_path / str(compression) / "server", compression=compression, rounds=2)
        sent = run.history[-1]["bytes_up"]
        assert sent is not None
        found[str(compression)] = sizes[-1]
        assert sizes[-1] < sent / len(NAMES) + 1200  # names, figures and a digest
    assert found["sign"] < 0.25 * found["None"]
    assert found["quantise:4"] < 0.35 * found["None"]
    assert found["top:0.01"] < 0.25 * found["None"]


@pytest.mark.parametrize("compression", often(["top:0.1", "quantise:2"]))
def test_a_killed_server_gets_the_same_from_a_client_that_is_asked_again(
    compression: str, tmp_path: Path
) -> None:
    nodes = sites(tmp_path)
    nodes[NODE].answer = watched(cut_in(3))
    with pytest.raises(PowerCut):
        train(nodes, tmp_path / "server", compression=compression)
    nodes[NODE].answer = app
    ours = train(nodes, tmp_path / "server", compression=compression)
    theirs = here("pflego", participation=5, compression=compression)
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
    for name in NAMES:
        assert_close(state(tmp_path, name), theirs.states[name])


def spoiled(change: Callable[[Weights], object]) -> Answer:
    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            alter(reply.content, lambda tensors, _: change(tensors))
        return reply

    return answer


@pytest.mark.parametrize(
    ("compression", "change", "why"),
    [
        ("quantise:3", lambda sent: sent["1.weight:codes"].fill_(255), "no level"),
        ("top:0.01", lambda sent: sent["1.weight:places"].fill_(5), "places"),
        ("top:0.01", lambda sent: sent["1.weight:places"].add_(1600), "places"),
        ("quantise:3", lambda sent: sent["1.weight:scale"].fill_(float("inf")), "infinity"),
        ("quantise:3", lambda sent: sent["1.weight:scale"].fill_(1e30), "norm"),
        ("quantise:3", lambda sent: sent.pop("1.weight:scale"), "are called"),
        ("sign", lambda sent: sent.update({"1.weight:signs": sent["1.weight:signs"][:3]}), "shape"),
    ],
)
def test_what_stands_for_no_contribution_is_dropped_and_the_round_goes_on(
    compression: str,
    change: Callable[[Weights], object],
    why: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = sites(tmp_path)
    nodes[NODE].answer = spoiled(change)
    with caplog.at_level("WARNING", logger="flwr.pflego"):
        run = train(nodes, tmp_path / "server", compression=compression, rounds=2)
    assert [row["rejected"] for row in run.history] == [1, 1]
    assert re.search(rf"client '{AWAY}': reply dropped: .*{why}", caplog.text)


def test_a_compression_is_among_what_a_sites_operator_accepts() -> None:
    plain, small = (Assignment.read({"compression": kind} if kind else {}) for kind in ("", "top:0.1"))
    assert plain.settings()["compression"] is None
    assert small.settings()["compression"] == "top:0.1"
    assert small.compression == compression_of("top:0.1")


def test_the_log_of_answers_names_what_was_sent(tmp_path: Path) -> None:
    seen: list[Weights] = []

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            seen.append(opened(reply.content)[0])
        return reply

    nodes = sites(tmp_path)
    nodes[NODE].answer = answer
    run = train(nodes, tmp_path / "server", compression="top:0.1", rounds=1)
    assert sorted(seen[0]) == ["1.bias:numbers", "1.bias:places", "1.weight:numbers", "1.weight:places"]
    assert nbytes(seen[0]) * len(NAMES) == run.history[0]["bytes_up"]
    text = (tmp_path / AWAY / "state" / f"answers.{AWAY}.jsonl").read_text()
    assert '"1.weight:numbers"' in text
