"""What travels: tensors and facts, encoded as one payload, as everything that is written is.

Nothing that arrives is believed: the codec compares names, shapes, types and sizes with what is known here before a
byte is taken for a number, facts are taken one by one, checked, and metrics are those of the method and no others.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from flwr.app import Array, ArrayRecord, Message, RecordDict

from pflego.codec import MessageError, Reader, decode, encode
from pflego.deploy.flower.facts import Common
from pflego.engines.base import Outcome
from pflego.exchange.metrics import How, Metric, Metrics
from pflego.exchange.objective import JOINT_LOSS, Emphasis
from pflego.exchange.round import Round
from pflego.learning.evaluation import Score
from pflego.learning.task import TaskName
from pflego.weights import Weights, nbytes

WELCOME = "train.welcome"  # the kind of message that asks a client to join
_PAYLOAD = "payload"
ALWAYS: dict[str, How] = {  # what every client measures, and how it is combined
    "loss": "mean",
    "test": "mean",
    "forward_passes": "largest",
    "backward_passes": "largest",
}
_LARGEST = 2.0**53
_HUGE = 1e100  # above every figure that float32 leads to; sums over clients are still finite
_LINE = 500  # characters of what a client says, at most, in a log
_REFUSAL = 4096  # bytes in which a client can say that its work came to nothing


def pack(tensors: Weights, facts: Mapping[str, object]) -> RecordDict:
    """Give tensors and facts as the content of a message."""
    return content_of(encode(tensors, facts))


def content_of(data: bytes) -> RecordDict:
    """Give bytes as the content of a message."""
    return RecordDict({_PAYLOAD: ArrayRecord({_PAYLOAD: Array("uint8", (len(data),), "pflego", data)})})


def payload(content: RecordDict) -> bytes:
    """Give the bytes of a message's content."""
    record = content.get(_PAYLOAD)
    if not isinstance(record, ArrayRecord) or list(record) != [_PAYLOAD]:
        raise MessageError("there is nothing of pflego's in it")
    return bytes(record[_PAYLOAD].data)


def unpack_facts(content: RecordDict) -> Reader:
    """Read a message's content that has no tensors."""
    return decode(payload(content), like={}).facts


@dataclass(frozen=True)
class Moment:
    """When everybody is tried, and how."""

    round: int  # the last one done
    adapt: bool

    @classmethod
    def read(cls, read: Reader) -> Moment:
        """Take it from facts, checked."""
        return cls(read.whole("round", least=0), read.one("adapt", (bool,)))


@dataclass(frozen=True)
class Arrival:
    """When a client joins, and how many steps its head takes before; None: until more would hardly lower its loss."""

    round: int
    steps: int | None

    @classmethod
    def read(cls, read: Reader) -> Arrival:
        """Take it from facts, checked."""
        steps = None if read.facts.get("steps") is None else read.whole("steps", least=1)
        return cls(read.whole("round", least=2), steps)


def pack_turn(now: Round, common: Common, shared: Weights) -> RecordDict:
    """Ask a client to do its work."""
    return pack(shared, {"round": asdict(now), "federation": asdict(common)})


def pack_moment(moment: Moment, common: Common, shared: Weights) -> RecordDict:
    """Ask a client to try its model."""
    return pack(shared, {"moment": asdict(moment), "federation": asdict(common)})


def pack_arrival(arrival: Arrival, common: Common, shared: Weights) -> RecordDict:
    """Ask a client to make its state ready for the shared weights: it joins."""
    return pack(shared, {"arrival": asdict(arrival), "federation": asdict(common)})


def read_round(read: Reader) -> Round:
    """Take a round from facts, checked."""
    return Round(
        number=read.whole("number", least=1),
        scale=read.finite("scale", least=1e-9, most=_LARGEST),
        largest_scale=read.finite("largest_scale", least=1e-9, most=_LARGEST),
        alpha=read.finite("alpha", least=0, most=1),
        emphasis=None if read.facts.get("emphasis") is None else _emphasis(read.inner("emphasis")),
        seed=read.one("seed", (int,)),
        exchange=read.whole("exchange", least=0),
    )


def _emphasis(read: Reader) -> Emphasis:
    above = None if read.facts.get("above") is None else read.finite("above", least=-_HUGE, most=_HUGE)
    power, times, constant = (read.finite(n, least=0, most=_LARGEST) for n in ("power", "times", "constant"))
    return Emphasis(power, above, times, constant)


def pack_outcome(outcome: Outcome, seconds: float, *, private: bool = False) -> RecordDict:
    """Tell what came of a client's work; where that is nothing of use, nothing but that.

    private: no figures beside the contribution.
    """
    if not outcome.finite:
        return pack({}, {"finite": False})
    if private:
        return pack(outcome.sent, {"finite": True, "seconds": 0.0, "metrics": {}})
    metrics = {name: [metric.total, metric.how, metric.weight] for name, metric in outcome.metrics.items()}
    return pack(outcome.sent, {"finite": True, "seconds": seconds, "metrics": metrics})


@dataclass(frozen=True)
class Reply:
    """What a client has sent, checked."""

    contribution: Weights
    bytes_up: int  # of what stood for it on the wire
    metrics: Metrics
    seconds: float
    left_out: list[str]  # metrics that the method does not have


@dataclass(frozen=True)
class Expected:
    """What is known of a client's figures before it sends any."""

    task: TaskName
    tests: int  # how many samples its model is tried on
    max_loss: float

    def check_loss(self, loss: float) -> None:
        """Refuse a loss that cannot be."""
        if not 0 <= loss <= self.max_loss:
            raise MessageError(f"its loss is {loss:g}, not between 0 and {self.max_loss:g}")

    def check_score(self, samples: float, total: float) -> None:
        """Refuse a test result that cannot be: no client is right more often than tried, or tried on other samples."""
        if samples not in (0, self.tests):
            raise MessageError(
                f"it was tried on {samples:g} samples, and had {self.tests} for tests when it joined"
            )
        most = samples * (1 if self.task == "classification" else self.max_loss)
        if not 0 <= total <= most:
            raise MessageError(f"it was right {total:g} times in {samples:g}")


def read_reply(
    content: RecordDict,
    like: Weights,
    metrics: Metrics,
    expected: Expected,
    alpha: float,
    unpacked: Callable[[Weights], Weights] = lambda sent: sent,
    *,
    private: bool = False,
) -> Reply:
    """Read a client's reply: tensors and metrics like others.

    alpha: how much the client's loss counts, whatever it says itself.
    unpacked: gives the contribution that the tensors stand for.
    private: what else it says is not looked at.
    """
    data = payload(content)
    decoded = decode(data, like=like if len(data) > _REFUSAL else None)
    if not decoded.facts.one("finite", (bool,)):
        raise MessageError("its work was not finite, it says")
    if private:
        sent = decoded.hold_to(like).tensors
        return Reply(unpacked(sent), nbytes(sent), {}, seconds=0.0, left_out=[])
    known = {**ALWAYS, JOINT_LOSS: "mean", **{name: metric.how for name, metric in metrics.items()}}
    measured = decoded.facts.inner("metrics")
    sent = decoded.hold_to(like).tensors
    return Reply(
        unpacked(sent),
        nbytes(sent),
        _metrics(measured, known, expected, alpha),
        seconds=decoded.facts.finite("seconds", least=0, most=_HUGE),
        left_out=[name for name in measured.facts if name not in known],
    )


def _metrics(read: Reader, known: Mapping[str, How], expected: Expected, alpha: float) -> dict[str, Metric]:
    for name in ALWAYS:
        if name not in read.facts:
            raise MessageError(f"its {name} is missing")
    metrics = {
        name: _metric(name, read.facts[name], how) for name, how in known.items() if name in read.facts
    }
    loss, test = metrics["loss"], metrics["test"]
    if (joint := metrics.get(JOINT_LOSS)) is not None:
        expected.check_loss(joint.value or 0.0)
        metrics[JOINT_LOSS] = Metric((joint.value or 0.0) * alpha, "mean", alpha)
    expected.check_score(test.weight, test.total)
    if not loss.weight and alpha:
        raise MessageError("its loss has no weight")
    expected.check_loss(loss.value or 0.0)
    for name in ("forward_passes", "backward_passes"):
        if metrics[name].total < 0:
            raise MessageError(f"its {name} is {metrics[name].total}")
    return {**metrics, "loss": Metric((loss.value or 0.0) * alpha, "mean", alpha)}


def _metric(name: str, value: object, how: How) -> Metric:
    match value:
        case [int() | float() as total, str() as said, int() | float() as weight] if said == how:
            if abs(total) <= _HUGE and 0 <= weight <= _LARGEST:
                metric = Metric(total, how, weight)
                if abs(metric.value or 0.0) <= _HUGE:
                    return metric
    raise MessageError(f"its {name} is {reprlib.repr(value)}, no {how}")


def pack_score(score: Score) -> RecordDict:
    """Tell a test result."""
    return pack({}, asdict(score))


def read_score(content: RecordDict, expected: Expected) -> Score:
    """Read a test result, checked."""
    read = unpack_facts(content)
    samples, total = read.whole("samples", least=0), read.finite("score", least=0, most=_HUGE)
    expected.check_score(samples, total)
    loss = None if read.facts.get("loss") is None else read.finite("loss")
    expected.check_loss(loss or 0.0)
    return Score(samples, loss, total)


def reason(reply: Message) -> str:
    """Say why a reply is an error: what the ClientApp said, without the name of the exception's class."""
    said = str(reply.error.reason)
    return plain(said.partition(":<'")[2].removesuffix("'>") or said)


def plain(text: object) -> str:
    """Give what somebody else has said as one line for a log, without control characters."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text)[:_LINE])
    return line + ("..." if len(str(text)) > _LINE else "")
