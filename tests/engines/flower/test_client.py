"""A client believes its server no more than the server believes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

import pflego
from pflego.engines.flower.client import app
from pflego.engines.flower.messages import pack
from tests.engines.flower.grid import MemoryGrid, Node, carried
from tests.engines.flower.world import CONFIG, SHAPE, sites

ROUND: dict[str, object] = {
    "number": 1, "clients": 5, "expected": 5.0, "samples": 110, "selected": 5, "seed": 5, "missing": "zero",
}  # fmt: skip
COMMON: dict[str, object] = {
    "run": "r1", "clients": 5, "samples": 110, "task": "classification", "classes": [0, 1, 2, 3, 4],
    "most_classes": 3, "outputs": 5, "schema": "",
}  # fmt: skip


def ask(node: Node, change: Callable[[RecordDict], None] = lambda _: None) -> Message:
    """What a node answers to a round's message."""
    MemoryGrid({}, {})
    content = RecordDict(
        {
            "shared": pack(pflego.models.build("mlp", SHAPE, seed=5).weights()),
            "round": ConfigRecord(ROUND),  # type: ignore[arg-type]
            "federation": ConfigRecord(COMMON),  # type: ignore[arg-type]
        }
    )
    change(content)
    message = carried(Message(content, 1, MessageType.TRAIN))
    return app(message, Context(1, 1, node.config, RecordDict(), CONFIG))


def entries(record: str, **changed: object) -> Callable[[RecordDict], None]:
    def apply(content: RecordDict) -> None:
        content[record] = ConfigRecord({**content.config_records[record], **changed})  # type: ignore[dict-item]

    return apply


def weights(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[RecordDict], None]:
    def apply(content: RecordDict) -> None:
        record = content.array_records["shared"]
        content["shared"] = ArrayRecord({name: Array(change(a.numpy())) for name, a in record.items()})

    return apply


def renamed(content: RecordDict) -> None:
    record = content.array_records["shared"]
    content["shared"] = ArrayRecord({f"x{name}": array for name, array in record.items()})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return sites(tmp_path)[998]


def test_an_honest_question_is_answered_and_the_state_is_kept(node: Node) -> None:
    reply = ask(node)
    assert list(reply.content.array_records["message"]) == ["1.weight", "1.bias"]
    assert reply.content.metric_records["figures"]["finite"] == 1
    [file] = Path(str(node.config["state"])).iterdir()
    assert file.name == "r1.mill.safetensors"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (weights(lambda a: np.full_like(a, np.nan)), "infinity or a NaN"),
        (weights(lambda a: a[:3]), "not float32 of shape"),
        (weights(lambda a: a.astype(np.float64)), "bytes, and at most"),
        (renamed, "are called x1.weight"),
        (lambda content: content.pop("shared"), "there are no weights"),
        (lambda content: content.pop("round"), "a record is missing"),
        (entries("round", number=0), "its number is 0"),
        (entries("round", expected=float("nan")), "its expected is nan"),
        (entries("round", missing="all"), "its missing is 'all'"),
        (entries("federation", classes=[0, 1]), "are not those of these data"),
        (entries("federation", most_classes=1), "are not those of these data"),
        (entries("federation", samples=3), "fewer than this client alone"),
        (entries("federation", task="regression"), "does regression, and these data are for classification"),
        (entries("federation", run="../../etc"), "not by letters and digits"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_and_nothing_is_kept(
    change: Callable[[RecordDict], None], why: str, node: Node
) -> None:
    with pytest.raises(pflego.UserError, match=why):
        ask(node, change)
    assert not Path(str(node.config["state"])).exists()


def test_work_that_comes_to_nothing_is_not_sent_and_not_kept(node: Node) -> None:
    reply = ask(node, weights(lambda a: np.full_like(a, 3e38)))
    assert len(reply.content.array_records["message"]) == 0
    assert dict(reply.content.metric_records["figures"]) == {"finite": 0}
    assert not Path(str(node.config["state"])).exists()


def test_a_state_that_cannot_be_kept_is_an_error_and_nothing_is_sent(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    node.config["state"] = str(tmp_path / "file" / "state")
    with pytest.raises(pflego.FolderError, match="cannot write to the folder"):
        ask(node)
