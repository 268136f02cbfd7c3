"""No reply is believed: a bad one is dropped, counted and logged with its node, and the round goes on."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

import pflego
from pflego.engines.flower.client import app
from pflego.engines.flower.messages import pack
from pflego.weights import Weights
from tests.engines.flower.grid import Answer, Node, NoReplyError
from tests.engines.flower.test_equality import assert_close
from tests.engines.flower.world import NAMES, SHAPE, federation, sites, train

BAD = "mill"
NODE = 1000 - NAMES.index(BAD)


def lying(change: Callable[[RecordDict], None]) -> Answer:
    """A ClientApp that does its work, then sends something else."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            change(reply.content)
        return reply

    return answer


def each(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[RecordDict], None]:
    def apply(content: RecordDict) -> None:
        record = content.array_records["message"]
        content["message"] = ArrayRecord({name: Array(change(a.numpy())) for name, a in record.items()})

    return apply


def renamed(content: RecordDict) -> None:
    record = content.array_records["message"]
    content["message"] = ArrayRecord({f"{name}.": array for name, array in record.items()})


def one_more(content: RecordDict) -> None:
    content.array_records["message"]["extra"] = Array(np.zeros(3, np.float32))


def flood(content: RecordDict) -> None:
    content["message"] = pack({"1.weight": torch.zeros(3_000_000), "1.bias": torch.zeros(200)})


def false_header(content: RecordDict) -> None:
    """An array that claims to be far larger than its bytes: whoever believes it reserves terabytes."""
    stream = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2 * 10**14,)}
    np.lib.format.write_array_header_1_0(stream, header)
    data = stream.getvalue() + bytes(800)
    content.array_records["message"]["1.bias"] = Array("float32", (200,), "numpy.ndarray", data)


def no_numpy(content: RecordDict) -> None:
    record = content.array_records["message"]
    record["1.bias"] = Array("float32", (200,), "pickle", b"cos\nsystem\n(S'true'\ntR.")


def figures(**changed: float) -> Callable[[RecordDict], None]:
    def apply(content: RecordDict) -> None:
        content["figures"] = MetricRecord({**content.metric_records["figures"], **changed})

    return apply


def nothing(content: RecordDict) -> None:
    content.clear()


def wrong_kind(content: RecordDict) -> None:
    content["message"] = ConfigRecord({"1.weight": "0", "1.bias": "0"})


LIES: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "NaN": (each(lambda a: np.full_like(a, np.nan)), "infinity or a NaN"),
    "infinity": (each(lambda a: np.full_like(a, np.inf)), "infinity or a NaN"),
    "huge values": (each(lambda a: np.full_like(a, 1e30)), "its norm is"),
    "wrong shapes": (each(lambda a: a.reshape(-1)[:100]), "not float32 of shape"),
    "transposed": (each(lambda a: np.asfortranarray(a)), "not float32 of shape"),
    "wrong types": (each(lambda a: a.astype(np.float16)), "is float16 of shape"),
    "objects": (each(lambda a: a.astype("S4")), r"is \|S4 of shape"),
    "wrong names": (renamed, "are called 1.weight., 1.bias., not 1.weight, 1.bias"),
    "one tensor more": (one_more, "are called"),
    "far too many bytes": (flood, "bytes, and at most"),
    "a false header": (false_header, "of shape"),
    "no array at all": (no_numpy, "cannot be read"),
    "no weights": (wrong_kind, "there are no weights"),
    "nothing": (nothing, "a record is missing"),
    "a loss of NaN": (figures(loss=float("nan")), "its loss is nan"),
    "more right than tried": (figures(test_score=99.0), "right 99 times in 6"),
    "negative seconds": (figures(seconds=-1.0), "its seconds is -1"),
    "its own word": (figures(finite=0), "was not finite, it says"),
}


class Deaf(pflego.PFLEGO):
    """A server that the replies of liars do not reach: they count as zero."""

    def server_update(
        self, round: pflego.Round, shared: Weights, server: Weights, replies: Sequence[pflego.Reply]
    ) -> tuple[Weights, Weights]:
        heard = [reply for reply in replies if reply.client in NAMES]
        return super().server_update(round, shared, server, heard)


def test_bad_replies_are_dropped_counted_and_logged_and_the_round_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    everybody = sorted([*NAMES, *LIES])
    nodes = sites(tmp_path, everybody)
    for node in nodes.values():
        if (name := str(node.config["client-id"])) in LIES:
            node.answer = lying(LIES[name][0])
    with caplog.at_level(logging.WARNING, "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=1, evaluate_every=0)
    assert run.history[0]["rejected"] == len(LIES)
    assert run.history[0]["missing"] == 0
    lines = [record.getMessage() for record in caplog.records]
    for name, (_, why) in LIES.items():
        number = 1000 - everybody.index(name)
        [line] = [
            line for line in lines if line.startswith(f"node {number}, client {name!r}: reply dropped: ")
        ]
        assert re.search(why, line), line
    honest = pflego.train(
        federation(everybody),
        pflego.models.build("mlp", SHAPE, seed=5),
        Deaf(steps=5),
        rounds=1,
        seed=5,
        device="cpu",
    )
    assert_close(run.shared, honest.shared)


def test_a_client_app_that_fails_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query":
            return app(message, context)
        raise RuntimeError("out of memory")

    nodes = sites(tmp_path)
    nodes[NODE].answer = broken
    with caplog.at_level(logging.WARNING, "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=1, evaluate_every=1)
    assert run.history[0]["missing"] == 1
    assert run.history[0]["rejected"] == 0
    assert f"node {NODE}, client '{BAD}': no answer: out of memory" in caplog.text
    assert run.evaluations[1][NAMES.index(BAD)] is None


NONSENSE: dict[str, tuple[dict[str, object], str]] = {
    "no samples": ({"samples": 0}, "its samples is 0"),
    "too many": ({"samples": 2**60}, "its samples is"),
    "two lines": ({"client": "x\ny"}, "printable characters"),
    "endless": ({"client": "x" * 200}, "printable characters"),
    "mixed": ({"classes": [3, 2]}, "ascending order"),
    "negative": ({"classes": [-1, 2]}, "whole numbers from 0"),
    "classless": ({"classes": []}, "with 0 classes"),
    "player": ({"task": "chess"}, "its task is 'chess'"),
    "typeless": ({"dtype": "os"}, "unknown type"),
    "unitless": ({"unit": float("nan")}, "its unit is nan"),
    "schematic": ({"schema": "../other.json"}, "no digest"),
    "other shape": ({"shape": [9]}, r"differ in the shape of a sample: \(9,\) and \(8,\)"),
    "impostor": ({"client": "tower"}, "is there already, with another key"),
}


def test_nodes_that_say_nonsense_of_themselves_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def nonsense(facts: dict[str, object]) -> Answer:
        def answer(message: Message, context: Context) -> Message:
            reply = app(message, context)
            reply.content["facts"] = ConfigRecord({**reply.content.config_records["facts"], **facts})  # type: ignore[dict-item]
            return reply

        return answer

    everybody = [*NONSENSE, *NAMES]  # numbers fall: the honest are asked first
    nodes = sites(tmp_path, everybody)
    for node in nodes.values():
        if (name := str(node.config["client-id"])) in NONSENSE:
            node.answer = nonsense(NONSENSE[name][0])
    with caplog.at_level(logging.WARNING, "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=1)
    assert run.federation.ids == NAMES
    for name, (_, why) in NONSENSE.items():
        left_out = [line for line in caplog.messages if re.search(why, line)]
        assert left_out, name


@pytest.mark.parametrize("method", ["fedavg", "fedbabu", "local"])
def test_every_methods_message_is_known_beforehand(method: str, tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    nodes[NODE].answer = lying(one_more)
    run = train(nodes, tmp_path / "server", rounds=1, evaluate_every=0, algorithm=method)
    assert run.history[0]["rejected"] == 1


def test_an_absolute_limit_of_norms(tmp_path: Path) -> None:
    run = train(sites(tmp_path), tmp_path / "server", rounds=1, **{"max-norm": 1e-6})
    assert run.history[0]["rejected"] == len(NAMES)
    assert_close(run.shared, pflego.models.build("mlp", SHAPE, seed=5).weights())


def test_a_node_that_never_says_who_it_is_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pflego.engines.flower.roll._PATIENCE", 0.5)

    def silent(message: Message, context: Context) -> Message:
        raise NoReplyError

    nodes = sites(tmp_path)
    nodes[1] = Node({}, answer=silent)
    run = train(nodes, tmp_path / "server", rounds=2)
    assert [row["missing"] for row in run.history] == [0, 0]
    assert len(nodes[1].asked) > 1
