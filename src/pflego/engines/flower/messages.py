"""What travels: weights and a few numbers as Flower's records, packed on one side and checked on the other.

Nothing that arrives is believed. Names, shapes and types are compared with what is known here before a byte is read
as a number, and numbers must be finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from typing import get_args

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, MetricRecordValues, RecordDict

from pflego.algorithms.base import Missing, Round
from pflego.data.schema import TaskName
from pflego.engines.base import Outcome
from pflego.engines.flower.facts import Common
from pflego.engines.flower.records import LARGEST, MessageError, Reader, some
from pflego.evaluation import Score
from pflego.weights import Weights, is_finite, nbytes

_HEADER = 256  # bytes that the name of a type, a shape and padding take before an array's numbers


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
        raise MessageError(f"its weights are called {some(record)}, not {some(like)}")
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
    read = Reader(content.get("round"))
    expected = read.one("expected", (float,))
    if not 0 < expected <= LARGEST:
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
        read = Reader(content.get("moment"))
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
        read = Reader(content.get("figures"))
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
    read = Reader(content.get("figures"))
    samples, total = read.whole("test_samples", least=0), read.finite("test_score", least=0)
    if (task == "classification" or samples == 0) and total > samples:
        raise MessageError(f"it was right {total:g} times in {samples}")
    return Score(samples, read.finite("test_loss") if "test_loss" in read.entries else None, total)


def reason(reply: Message) -> str:
    """Why a reply is an error: what the ClientApp said, without the name of the exception's class."""
    said = str(reply.error.reason)
    return said.partition(":<'")[2].removesuffix("'>") or said


def question(shared: Weights, round: Round, common: Common) -> str:
    """Digest what a client was asked to do: the same for the same round with the same weights, in any order."""
    digest = blake2b(f"{round}\0{common}\0".encode(), digest_size=12)
    for name, tensor in sorted(shared.items()):
        digest.update(f"{name}\0".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
