"""What travels: weights and a few numbers as Flower's records, packed on one side and checked on the other.

Nothing that arrives is believed. Names, shapes and types are compared with what is known here before a byte is read
as a number, and numbers must be finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from math import isfinite
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, MetricRecordValues, RecordDict

from pflego.algorithms.base import Missing, Round
from pflego.engines.base import Outcome
from pflego.errors import UserError
from pflego.evaluation import Score
from pflego.federation import Client, ClientId
from pflego.weights import Weights, is_finite, nbytes

TaskName: TypeAlias = Literal["classification", "regression"]
T = TypeVar("T")

_HEADER = 256  # bytes that the name of a type, a shape and padding take before an array's numbers
_LONGEST_ID = 80  # characters: ids are parts of file names
_MOST_CLASSES = 1_000_000
_LARGEST = 2**53


class MessageError(UserError):
    """What arrived is not what was agreed on. It is not used."""


def pack(weights: Weights) -> ArrayRecord:
    """Weights as a record, by the same names and in the same order."""
    return ArrayRecord(
        {name: Array(tensor.detach().cpu().contiguous().numpy()) for name, tensor in weights.items()}
    )


def unpack(record: object, like: Weights) -> Weights:
    """Read weights that must have the names, shapes and types of others, and be finite."""
    if not isinstance(record, ArrayRecord):
        raise MessageError("there are no weights in it")
    size, limit = sum(len(array.data) for array in record.values()), nbytes(like) + _HEADER * len(like)
    if size > limit:
        raise MessageError(f"it has {size} bytes, and at most {limit} were expected")
    if record.keys() != like.keys():
        raise MessageError(f"its weights are called {_some(record)}, not {_some(like)}")
    weights = {name: _tensor(name, record[name], tensor) for name, tensor in like.items()}
    for name, tensor in weights.items():
        if not is_finite({name: tensor}):
            raise MessageError(f"its {name} holds an infinity or a NaN")
    return weights


def _tensor(name: str, array: Array, like: torch.Tensor) -> torch.Tensor:
    """One tensor. The header is read first: a false one must not make this machine reserve memory."""
    stream = BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("a header of another version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except ValueError as error:
        raise MessageError(f"its {name} cannot be read: {error}") from error
    wanted = np.dtype(str(like.dtype).removeprefix("torch."))
    if shape != tuple(like.shape) or dtype != wanted or fortran:
        raise MessageError(
            f"its {name} is {dtype} of shape {shape}, not {wanted} of shape {tuple(like.shape)}"
        )
    numbers = array.data[stream.tell() :]
    if len(numbers) != like.nbytes:
        raise MessageError(f"its {name} has {len(numbers)} bytes, not {like.nbytes}")
    return torch.from_numpy(np.frombuffer(numbers, dtype).copy()).reshape(like.shape)


@dataclass(frozen=True)
class Facts:
    """What a client says of itself when it is asked who it is, and nothing else."""

    client: ClientId
    samples: int  # for training
    task: TaskName
    classes: tuple[int, ...]  # by their ids in the whole federation; none in regression
    outputs: int  # of a model for this client alone
    shape: tuple[int, ...]  # of one sample
    dtype: str  # of its inputs

    @classmethod
    def of(cls, client: Client) -> Facts:
        """The facts of a client that is here."""
        classes = tuple(client.classes.tolist())
        return cls(
            client.id,
            samples=len(client.x_train),
            task="classification" if classes else "regression",
            classes=classes,
            outputs=len(classes) or client.y_train[:1].numel(),
            shape=tuple(client.x_train.shape[1:]),
            dtype=str(client.x_train.dtype).removeprefix("torch."),
        )

    def pack(self) -> ConfigRecord:
        """As a record."""
        return ConfigRecord(
            {
                "client": self.client,
                "samples": self.samples,
                "task": self.task,
                "classes": list(self.classes),
                "outputs": self.outputs,
                "shape": list(self.shape),
                "dtype": self.dtype,
            }
        )

    @classmethod
    def unpack(cls, content: RecordDict) -> Facts:
        """From a record, checked."""
        read = _Reader(content.get("facts"))
        classes = read.numbers("classes", least=0)
        facts = cls(
            check_id(read.id("client")),
            samples=read.whole("samples", least=1),
            task=read.choice("task", get_args(TaskName)),  # type: ignore[arg-type]
            classes=classes,
            outputs=read.whole("outputs", least=1),
            shape=read.numbers("shape", least=1),
            dtype=read.one("dtype", (str,)),
        )
        if len(classes) > _MOST_CLASSES or list(classes) != sorted(set(classes)):
            raise MessageError("its classes are not in ascending order, each once")
        if (facts.task == "classification") != bool(classes):
            raise MessageError(f"its task is {facts.task}, with {len(classes)} classes")
        if not isinstance(getattr(torch, facts.dtype, None), torch.dtype):
            raise MessageError(f"its inputs are of the unknown type {facts.dtype[:40]!r}")
        return facts


@dataclass(frozen=True)
class Common:
    """What everybody in a federation knows of it: what a model that all share looks like."""

    run: str  # names this training and no other
    clients: int
    samples: int  # for training, of all
    task: TaskName
    classes: tuple[int, ...]  # all of them; none in regression
    most_classes: int  # of one client; 0 in regression
    outputs: int

    def pack(self) -> ConfigRecord:
        """As a record."""
        return ConfigRecord(
            {
                "run": self.run,
                "clients": self.clients,
                "samples": self.samples,
                "task": self.task,
                "classes": list(self.classes),
                "most_classes": self.most_classes,
                "outputs": self.outputs,
            }
        )

    @classmethod
    def unpack(cls, content: RecordDict) -> Common:
        """From a record, checked."""
        read = _Reader(content.get("federation"))
        run = read.one("run", (str,))
        if not run.isalnum() or len(run) > _LONGEST_ID:
            raise MessageError(f"its run is called {run[:40]!r}, not by letters and digits")
        return cls(
            run,
            clients=read.whole("clients", least=1),
            samples=read.whole("samples", least=1),
            task=read.choice("task", get_args(TaskName)),  # type: ignore[arg-type]
            classes=read.numbers("classes", least=0),
            most_classes=read.whole("most_classes", least=0),
            outputs=read.whole("outputs", least=1),
        )

    def check(self, facts: Facts) -> None:
        """Refuse a federation that a client cannot be part of."""
        if facts.task != self.task:
            raise MessageError(f"the federation does {self.task}, and these data are for {facts.task}")
        if not set(facts.classes) <= set(self.classes) or len(facts.classes) > self.most_classes:
            raise MessageError(f"the federation's classes {_some(self.classes)} are not those of these data")
        if self.task == "regression" and facts.outputs != self.outputs:
            raise MessageError(
                f"the federation has {self.outputs} targets a sample, these data {facts.outputs}"
            )
        if self.samples < facts.samples:
            raise MessageError(f"the federation has {self.samples} samples, fewer than this client alone")


def pack_round(round: Round) -> ConfigRecord:
    """A round's numbers as a record."""
    return ConfigRecord(
        {
            "number": round.number,
            "clients": round.clients,
            "expected": float(round.expected),
            "samples": round.samples,
            "selected": round.selected,
            "seed": round.seed,
            "missing": round.missing,
        }
    )


def unpack_round(content: RecordDict) -> Round:
    """A round's numbers from a record, checked."""
    read = _Reader(content.get("round"))
    expected = read.one("expected", (float,))
    if not 0 < expected <= _LARGEST:
        raise MessageError(f"its expected is {expected}")
    return Round(
        number=read.whole("number", least=1),
        clients=read.whole("clients", least=1),
        expected=expected,
        samples=read.whole("samples", least=1),
        selected=read.whole("selected", least=1),
        seed=read.one("seed", (int,)),
        missing=read.choice("missing", get_args(Missing)),  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Moment:
    """When everybody is tried, and how."""

    round: int  # the last one done
    adapt: bool

    def pack(self) -> ConfigRecord:
        """As a record."""
        return ConfigRecord({"round": self.round, "adapt": int(self.adapt)})

    @classmethod
    def unpack(cls, content: RecordDict) -> Moment:
        """From a record, checked."""
        read = _Reader(content.get("moment"))
        return cls(read.whole("round", least=0), bool(read.whole("adapt", least=0)))


@dataclass(frozen=True)
class Figures:
    """What a client tells of its work, beside the message."""

    finite: bool  # False: the work came to nothing, there is no message
    loss: float
    score: Score
    seconds: float
    forward_passes: int
    backward_passes: int
    fallbacks: int

    @classmethod
    def of(cls, outcome: Outcome) -> Figures:
        """The figures of work done here."""
        return cls(
            outcome.finite,
            loss=outcome.loss,
            score=outcome.score,
            seconds=outcome.seconds,
            forward_passes=outcome.forward_passes,
            backward_passes=outcome.backward_passes,
            fallbacks=outcome.fallbacks,
        )

    def pack(self) -> MetricRecord:
        """As a record; all but the first number are left out where the work came to nothing."""
        if not self.finite:
            return MetricRecord({"finite": 0})
        return MetricRecord(
            {
                "finite": 1,
                "loss": self.loss,
                "seconds": self.seconds,
                "forward_passes": self.forward_passes,
                "backward_passes": self.backward_passes,
                "fallbacks": self.fallbacks,
                **pack_score(self.score),
            }
        )

    @classmethod
    def unpack(cls, content: RecordDict, task: TaskName) -> Figures:
        """From a record, checked."""
        read = _Reader(content.get("figures"))
        if read.whole("finite", least=0) == 0:
            raise MessageError("its work was not finite, it says")
        return cls(
            True,
            loss=read.finite("loss"),
            score=unpack_score(content, task),
            seconds=read.finite("seconds", least=0),
            forward_passes=read.whole("forward_passes", least=0),
            backward_passes=read.whole("backward_passes", least=0),
            fallbacks=min(1, read.whole("fallbacks", least=0)),
        )


def pack_score(score: Score) -> dict[str, MetricRecordValues]:
    """A test result as entries of a record."""
    entries: dict[str, MetricRecordValues] = {"test_samples": score.samples, "test_score": score.score}
    return entries if score.loss is None else {**entries, "test_loss": score.loss}


def unpack_score(content: RecordDict, task: TaskName) -> Score:
    """A test result from a record, checked: no client can be right more often than it was tried."""
    read = _Reader(content.get("figures"))
    samples, total = read.whole("test_samples", least=0), read.finite("test_score", least=0)
    if (task == "classification" or samples == 0) and total > samples:
        raise MessageError(f"it was right {total:g} times in {samples}")
    return Score(samples, read.finite("test_loss") if "test_loss" in read.entries else None, total)


def reason(reply: Message) -> str:
    """Why a reply is an error: what the ClientApp said, without the name of the exception's class."""
    said = str(reply.error.reason)
    return said.partition(":<'")[2].removesuffix("'>") or said


def check_id(id: ClientId) -> ClientId:
    """Refuse an id that could not be part of a file's name or of a line in a log."""
    if isinstance(id, str) and not (0 < len(id) <= _LONGEST_ID and id.isprintable()):
        raise MessageError(f"a client's id is 1 to {_LONGEST_ID} printable characters, not {id[:40]!r}")
    return id


def question(shared: Weights, round: Round, common: Common) -> str:
    """Digest what a client was asked to do: the same for the same round with the same weights, in any order."""
    digest = blake2b(f"{round}\0{common}\0".encode(), digest_size=12)
    for name, tensor in sorted(shared.items()):
        digest.update(f"{name}\0".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


class _Reader:
    """Takes values from a record that somebody else has written."""

    def __init__(self, record: object) -> None:
        if not isinstance(record, ConfigRecord | MetricRecord):
            raise MessageError("a record is missing in it")
        self.entries: Mapping[str, object] = dict(record)

    def one(self, name: str, kinds: tuple[type[T], ...]) -> T:
        value = self.entries.get(name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise MessageError(f"its {name} is {str(value)[:40]!r}")
        return value

    def id(self, name: str) -> ClientId:
        value = self.entries.get(name)
        return value if isinstance(value, str) else self.one(name, (int,))

    def whole(self, name: str, *, least: int) -> int:
        value = self.one(name, (int,))
        if not least <= value <= _LARGEST:
            raise MessageError(f"its {name} is {value}")
        return value

    def finite(self, name: str, *, least: float | None = None) -> float:
        value = float(self.one(name, (float, int)))
        if not isfinite(value) or (least is not None and value < least):
            raise MessageError(f"its {name} is {value}")
        return value

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        value = self.one(name, (str,))
        if value not in known:
            raise MessageError(f"its {name} is {value[:40]!r}")
        return value

    def numbers(self, name: str, *, least: int) -> tuple[int, ...]:
        values = self.one(name, (list,))
        if not all(isinstance(value, int) and least <= value <= _LARGEST for value in values):
            raise MessageError(f"its {name} are not whole numbers from {least}")
        return tuple(values)


def _some(names: object) -> str:
    words = [str(name)[:40] for name in names]  # type: ignore[attr-defined]
    return ", ".join(words[:4]) + (", ..." if len(words) > 4 else "") if words else "nothing"
