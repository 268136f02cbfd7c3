"""A client believes its server no more than the server believes it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from torch import Tensor

import pflego
from pflego.codec import decode
from pflego.deploy.flower.client import app
from pflego.deploy.flower.messages import pack, payload
from pflego.weights import Weights
from tests.support.grid import Facts, MemoryGrid, Node, alter, carried, opened
from tests.support.sites import CONFIG, SHAPE, sites

ROUND: Facts = {"number": 1, "scale": 1.0, "largest_scale": 1.0, "alpha": 0.2, "seed": 5, "exchange": 0}
COMMON: Facts = {
    "run": "r1", "clients": 5, "samples": 110, "task": "classification", "classes": [0, 1, 2, 3, 4],
    "most_classes": 3, "outputs": 5, "schema": "",
}  # fmt: skip

Change = Callable[[RecordDict], None]


def ask(node: Node, change: Change = lambda _: None) -> Message:
    """Give what a node answers to a round's message."""
    MemoryGrid({}, {})
    shared = pflego.models.build("mlp", SHAPE, seed=5).weights()
    content = pack(shared, {"round": ROUND, "federation": COMMON})
    change(content)
    message = carried(Message(content, 1, MessageType.TRAIN))
    return app(message, Context(1, 1, node.config, RecordDict(), CONFIG))


def state_of(node: Node) -> Path:
    return Path(str(node.config["state"]))


def entries(record: str, **changed: object) -> Change:
    return lambda content: alter(content, lambda _, facts: facts[record].update(changed))


def without(record: str) -> Change:
    return lambda content: alter(content, lambda _, facts: facts.pop(record))


def weights(change: Callable[[Tensor], Tensor]) -> Change:
    def apply(tensors: Weights, _: Facts) -> None:
        tensors.update({name: change(tensor) for name, tensor in tensors.items()})

    return lambda content: alter(content, apply)


def renamed(content: RecordDict) -> None:
    def apply(tensors: Weights, _: Facts) -> None:
        for name in list(tensors):
            tensors[f"x{name}"] = tensors.pop(name)

    alter(content, apply)


def damaged(content: RecordDict) -> None:
    """Change a byte of a tensor on the way."""
    data = bytearray(payload(content))
    data[-1] ^= 1
    content["payload"] = ArrayRecord({"payload": Array("uint8", (len(data),), "pflego", bytes(data))})


def foreign(content: RecordDict) -> None:
    content["payload"] = ConfigRecord({"1.weight": "0", "1.bias": "0"})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return sites(tmp_path)[998]


def test_an_honest_question_is_answered_and_the_state_is_kept(node: Node) -> None:
    tensors, facts = opened(ask(node).content)
    assert tensors.keys() == {"1.weight", "1.bias"}
    assert facts.keys() == {"finite", "seconds", "metrics"}
    assert facts["finite"] is True
    assert facts["metrics"].keys() == {
        "loss", "test", "forward_passes", "backward_passes", "fallbacks", "above_bound", "rate_over_bound"
    }  # fmt: skip
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in state_of(node).iterdir()}
    assert files == {"r1.mill.safetensors": 0o600, "answers.mill.jsonl": 0o600}
    assert stat.S_IMODE(state_of(node).stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (weights(lambda a: torch.full_like(a, torch.nan)), "infinity or a NaN"),
        (weights(lambda a: a[:3]), "not torch.float32 of shape"),
        (weights(lambda a: a.double()), "is torch.float64 of shape"),
        (renamed, r"are called x1\."),
        (lambda content: alter(content, lambda tensors, _: tensors.clear()), "are called nothing"),
        (lambda content: content.clear(), "nothing of pflego's"),
        (foreign, "nothing of pflego's"),
        (damaged, "does not match its digest"),
        (without("round"), "a record is missing"),
        (without("federation"), "a record is missing"),
        (entries("round", number=0), "its number is 0"),
        (entries("round", scale=float("nan")), "its scale is nan"),
        (entries("round", scale=0), "its scale is 0"),
        (entries("round", alpha=1.5), "its alpha is 1.5"),
        (entries("round", alpha=-0.5), "its alpha is -0.5"),
        (entries("round", seed="5"), "its seed is '5'"),
        (entries("round", exchange=-1), "its exchange is -1"),
        (entries("round", exchange=1), "its exchange is 1"),
        (entries("federation", classes=[0, 1]), "are not those of these data"),
        (entries("federation", most_classes=1), "are not those of these data"),
        (entries("federation", samples=3), "fewer than this client alone"),
        (entries("federation", task="regression"), "does regression, and these data are for classification"),
        (entries("federation", run="../../etc"), "not by letters and digits"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_and_nothing_is_kept(
    change: Change, why: str, node: Node
) -> None:
    with pytest.raises(pflego.UserError, match=why):
        ask(node, change)
    assert not Path(str(node.config["state"])).exists()


def test_the_same_question_has_the_same_answer_to_the_bit(node: Node) -> None:
    (first, figures), *others = [opened(ask(node).content) for _ in range(3)]
    for tensors, facts in others:
        assert facts["metrics"] == figures["metrics"]
        assert all(torch.equal(tensors[name], first[name]) for name in first)


def test_weights_arrive_in_the_order_that_is_agreed_on() -> None:
    """Sums over all tensors are the same to the bit only where their order is."""
    like = {letter: torch.ones(3) for letter in "qwertyuiop"}
    content = pack(dict(reversed(like.items())), {})
    assert list(decode(payload(content), like=like).tensors) == list(like)


def test_work_that_comes_to_nothing_is_not_sent_and_not_kept(node: Node) -> None:
    reply = ask(node, weights(lambda a: torch.full_like(a, 3e38)))
    assert opened(reply.content) == ({}, {"finite": False})
    assert not list(state_of(node).glob("*.safetensors"))


def test_a_state_that_cannot_be_kept_is_an_error_and_nothing_is_sent(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    node.config["state"] = str(tmp_path / "file" / "state")
    with pytest.raises(pflego.FolderError):
        ask(node)
