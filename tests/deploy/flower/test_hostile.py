"""No reply is believed: a bad one is dropped, counted and logged with its node, and the round goes on."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import Tensor

import pflego
from pflego.codec import digest
from pflego.deploy.flower.client import app
from pflego.exchange.round import Round
from pflego.federation.roster import ClientId
from pflego.training.loop import NothingLearnedWarning
from pflego.weights import Weights
from tests.deploy.flower.test_equality import assert_close
from tests.support.grid import Answer, Facts, Node, NoReplyError, alter
from tests.support.sites import NAMES, SHAPE, federation, sites, train

BAD = "mill"
NODE = 1000 - NAMES.index(BAD)

Lie = Callable[[RecordDict], None]


def lying(change: Lie, kind: str = "train") -> Answer:
    """Give a ClientApp that does its work, then sends something else."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == kind:
            change(reply.content)
        return reply

    return answer


def altered(change: Callable[[Weights, Facts], object]) -> Lie:
    return lambda content: alter(content, change)


def each(change: Callable[[Tensor], Tensor]) -> Lie:
    return altered(lambda tensors, _: tensors.update({n: change(t) for n, t in tensors.items()}))


def renamed(content: RecordDict) -> None:
    def apply(tensors: Weights, _: Facts) -> None:
        for name in list(tensors):
            tensors[f"{name}."] = tensors.pop(name)

    alter(content, apply)


one_more = altered(lambda tensors, _: tensors.update(extra=torch.zeros(3)))
flood = altered(lambda tensors, _: tensors.update({"1.weight": torch.zeros(3_000_000)}))


def figures(**changed: object) -> Lie:
    """Change metrics: their total, how they are combined, and their weight."""
    return altered(lambda _, facts: facts["metrics"].update(changed))


def facts_of(**changed: object) -> Lie:
    return altered(lambda _, facts: facts.update(changed))


def raw(data: bytes, kind: str = "pflego") -> Lie:
    """Send bytes of one's own."""

    def apply(content: RecordDict) -> None:
        content["payload"] = ArrayRecord({"payload": Array("uint8", (len(data),), kind, data)})

    return apply


def with_header(header: str, numbers: bytes = b"") -> Lie:
    """Send safetensors with a header of one's own."""
    return raw(len(header).to_bytes(8, "little") + header.encode() + numbers)


def with_facts(text: str) -> Lie:
    """Send no tensors, and beside them a text of one's own, under a digest that is right."""
    entries = {"format": "pflego 2", "facts": text, "digest": digest({}, text)}
    return with_header(json.dumps({"__metadata__": entries}))


def nothing(content: RecordDict) -> None:
    content.clear()


def wrong_kind(content: RecordDict) -> None:
    content["payload"] = ConfigRecord({"1.weight": "0", "1.bias": "0"})


# whoever believes this reserves terabytes
TERABYTES = json.dumps({"1.bias": {"dtype": "F32", "shape": [2 * 10**14], "data_offsets": [0, 800]}})

LIES: dict[str, tuple[Lie, str]] = {
    "NaN": (each(lambda a: torch.full_like(a, torch.nan)), "infinity or a NaN"),
    "infinity": (each(lambda a: torch.full_like(a, torch.inf)), "infinity or a NaN"),
    "huge values": (each(lambda a: torch.full_like(a, 1e30)), "its norm is"),
    "wrong shapes": (each(lambda a: a.reshape(-1)[:100]), "not torch.float32 of shape"),
    "transposed": (each(lambda a: a.t()), r"of shape \(8, 200\), not torch.float32 of shape \(200, 8\)"),
    "wrong types": (each(lambda a: a.half()), "is torch.float16 of shape"),
    "bytes": (each(lambda a: a.view(torch.uint8)), "is torch.uint8 of shape"),
    "wrong names": (renamed, r"are called 1\.\w+\., 1\.\w+\., not 1.weight, 1.bias"),
    "one tensor more": (one_more, "are called"),
    "one tensor less": (altered(lambda tensors, _: tensors.pop("1.bias")), "are called 1.weight, not"),
    "far too many bytes": (flood, "bytes, and at most"),
    "a false header": (with_header(TERABYTES, bytes(800)), "cannot be read"),
    "a header without an end": (raw(b"\xff" * 7 + b"\x7f{}"), "cannot be read"),
    "a deep header": (with_header("[" * 100_000), "cannot be read"),
    "no facts": (with_header('{"__metadata__": null}'), "not written by this version"),
    "no bytes": (raw(b""), "cannot be read"),
    "a program": (raw(b"cos\nsystem\n(S'true'\ntR.", "pickle"), "cannot be read"),
    "no weights": (wrong_kind, "nothing of pflego's"),
    "nothing": (nothing, "nothing of pflego's"),
    "no JSON": (with_facts("{"), "cannot be read"),
    "deep facts": (with_facts("[" * 100_000), "cannot be read"),
    "a list of facts": (with_facts("[]"), "a record is missing"),
    "a number of endless length": (with_facts('{"finite": 1' + "0" * 5000 + "}"), "cannot be read"),
    "no figures": (altered(lambda _, facts: facts.pop("metrics")), "a record is missing"),
    "no loss": (altered(lambda _, facts: facts["metrics"].pop("loss")), "its loss is missing"),
    "a loss of NaN": (figures(loss=[float("nan"), "mean", 1.0]), "its loss is .*nan"),
    "a loss without limit": (figures(loss=[1.0, "mean", 5e-324]), "its loss is"),
    "a loss without weight": (figures(loss=[0.0, "mean", 0.0]), "its loss has no weight"),
    "a loss in words": (figures(loss="low"), "its loss is 'low'"),
    "a huge whole number": (figures(fallbacks=[10**400, "sum", 1.0]), "its fallbacks is"),
    "a figure of another kind": (figures(fallbacks=[1.0, "mean", 1.0]), "its fallbacks is .* no sum"),
    "passes undone": (figures(forward_passes=[-1.0, "largest", 1.0]), "its forward_passes is -1"),
    "more right than tried": (figures(test=[99.0, "mean", 6]), "right 99 times in 6"),
    "half a test": (figures(test=[1.0, "mean", 2.5]), "tried on 2.5 samples"),
    "a larger test": (figures(test=[600.0, "mean", 600]), "tried on 600 samples, and had 6"),
    "a huge loss": (figures(loss=[1e9, "mean", 1.0]), "its loss is 1e.09, not between 0 and"),
    "a negative loss": (figures(loss=[-1.0, "mean", 1.0]), "its loss is -1, not between"),
    "a hundred times the gradient": (each(lambda a: -100 * a), "its norm is"),
    "negative seconds": (facts_of(seconds=-1.0), "its seconds is -1"),
    "endless seconds": (facts_of(seconds=10**400), "its seconds is 1000"),
    "its own word": (facts_of(finite=False), "was not finite, it says"),
    "its own word alone": (with_facts('{"finite": false}'), "was not finite, it says"),
    "no word": (facts_of(finite="yes"), "its finite is 'yes'"),
}


class Unheard:
    """Count what liars send as zero, in a federation in one process."""

    def __call__(self, contribution: Weights, now: Round, client: ClientId) -> Weights:
        heard = client in NAMES
        return {name: tensor if heard else torch.zeros_like(tensor) for name, tensor in contribution.items()}


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
        pflego.PFLEGO(steps=5),
        rounds=1,
        seed=5,
        device="cpu",
        transforms=[Unheard()],
    )
    assert_close(run.shared, honest.shared)


def test_metrics_that_the_method_does_not_have_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    claims = {"round": [99.0, "sum", 1.0], "bytes_up": [0.0, "mean", 1.0], "two\nlines": [1.0, "sum", 1.0]}
    nodes[NODE].answer = lying(figures(**claims))
    with caplog.at_level(logging.WARNING, "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=1, evaluate_every=0)
    honest = train(sites(tmp_path / "honest"), tmp_path / "other", rounds=1, evaluate_every=0)
    assert {**run.history[0], "seconds": 0} == {**honest.history[0], "seconds": 0}
    assert run.history[0]["rejected"] == 0
    [line] = [line for line in caplog.messages if "metrics left out" in line]
    assert line.startswith(f"node {NODE}, client '{BAD}'")
    assert "'round'" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (facts_of(samples=2.5), "its samples is .2.5."),
        (facts_of(samples=600, score=600.0), "tried on 600 samples"),
        (facts_of(loss=1e9), "its loss is 1e.09, not between"),
        (facts_of(score=99.0), "right 99 times in 6"),
        (facts_of(score=float("nan")), "its score is nan"),
        (facts_of(loss=float("inf")), "its loss is inf"),
        (altered(lambda tensors, _: tensors.update(head=torch.zeros(3))), "are called head, not nothing"),
        (with_facts("{"), "cannot be read"),
        (nothing, "nothing of pflego's"),
    ],
)
def test_a_false_test_result_is_left_out(
    change: Lie, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    nodes[NODE].answer = lying(change, "evaluate")
    with caplog.at_level(logging.WARNING, "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=1, evaluate_every=1)
    [line] = [line for line in caplog.messages if "result left out" in line]
    assert re.search(why, line), line
    scores = dict(zip(NAMES, run.evaluations[1], strict=True))
    assert [name for name, score in scores.items() if score is None] == [BAD]


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
    "a billion": ({"samples": 2 * 10**9}, "max_samples allows 1000000000"),
    "two lines": ({"client": "x\ny"}, "printable characters"),
    "endless": ({"client": "x" * 200}, "printable characters"),
    "mixed": ({"classes": [3, 2]}, "ascending order"),
    "negative": ({"classes": [-1, 2]}, "whole numbers from 0"),
    "classless": ({"classes": []}, "with 0 classes"),
    "player": ({"task": "chess"}, "its task is 'chess'"),
    "typeless": ({"dtype": "os"}, "unknown type"),
    "endless unit": ({"unit": 10**400}, "its unit is 1000"),
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
            alter(reply.content, lambda _, said: said.update(facts))
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


@pytest.mark.parametrize("method", ["fedavg", "fedbabu", "feddane", "local"])
def test_every_methods_message_is_known_beforehand(method: str, tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    nodes[NODE].answer = lying(one_more)
    run = train(nodes, tmp_path / "server", rounds=1, evaluate_every=0, algorithm=method)
    assert run.history[0]["rejected"] == 1


def test_an_absolute_limit_of_norms(tmp_path: Path) -> None:
    with pytest.warns(NothingLearnedWarning):
        run = train(sites(tmp_path), tmp_path / "server", rounds=1, **{"max-norm": 1e-6})
    assert run.history[0]["rejected"] == len(NAMES)
    assert_close(run.shared, pflego.models.build("mlp", SHAPE, seed=5).weights())


def test_a_node_that_never_says_who_it_is_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pflego.deploy.flower.roll._PATIENCE", 0.5)

    def silent(message: Message, context: Context) -> Message:
        raise NoReplyError

    nodes = sites(tmp_path)
    nodes[1] = Node({}, answer=silent)
    run = train(nodes, tmp_path / "server", rounds=2)
    assert [row["missing"] for row in run.history] == [0, 0]
    assert len(nodes[1].asked) > 1
