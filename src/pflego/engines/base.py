"""Where client work runs: what the round loop asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, TypeAlias, runtime_checkable

from pflego.algorithms.base import Algorithm, Reply, Round
from pflego.evaluation import Score
from pflego.federation import ClientId
from pflego.problem import Problems
from pflego.weights import Weights, nbytes


class Engine(Protocol):
    """Lets clients work, here or elsewhere."""

    def run(self, round: Round, shared: Weights, cohort: Sequence[int]) -> list[Outcome]:
        """Let every client of the cohort, positions in the federation, do its work.

        Outcomes come in the order of the federation. A client that has none did not answer.
        """

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        """Try every client's model on its own test data, in the order of the federation.

        adapt: each client first makes its state ready for the shared weights; nothing is stored.
        """


EngineMaker: TypeAlias = Callable[[Problems, Algorithm, Mapping[ClientId, Weights]], Engine]


@runtime_checkable
class Spread(Engine, Protocol):
    """An engine in each of several processes: its outcomes are a part of the round's."""

    def pool(
        self, shared: Weights, replies: Mapping[int, Reply], tally: Tally
    ) -> tuple[dict[int, Reply], Tally]:
        """Put the replies that arrived and the figures of all processes together, for each of them the same.

        Replies stand at the positions of their clients.
        """


@dataclass(frozen=True)
class Outcome:
    """What came of one client's work in a round."""

    position: int  # of the client in the federation
    client: ClientId
    samples: int
    reply: Reply  # the same for clients that worked together
    state: Weights
    loss: float
    score: Score
    seconds: float
    worker: int  # which thread did the work
    forward_passes: int
    backward_passes: int
    fallbacks: int
    finite: bool  # fit for use: no infinity and no NaN in what was sent, kept or measured


@dataclass(frozen=True)
class Tally:
    """What the outcomes of a round add up to, in one process or in all."""

    answered: int = 0  # clients that have an outcome
    sound: int = 0  # of them, those whose outcome is fit for use
    arrived: int = 0  # of these, those whose reply arrived
    samples: int = 0  # training samples of the sound ones
    loss: float = 0.0  # sum_i N_i l_i over them
    tested: int = 0  # their test samples
    score: float = 0.0  # and the sum of the task's scores
    fallbacks: int = 0
    bytes_up: int = 0
    forward_passes: int = 0  # the most that a client made
    backward_passes: int = 0
    seconds: float = 0.0  # of the busiest process

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], sound: Sequence[Outcome], arrived: Sequence[Outcome]) -> Tally:
        """Sum up a round: all outcomes, the sound ones among them, and of these those whose reply arrived."""
        return cls(
            answered=len(outcomes),
            sound=len(sound),
            arrived=len(arrived),
            samples=sum(outcome.samples for outcome in sound),
            loss=sum(outcome.loss * outcome.samples for outcome in sound),
            tested=sum(outcome.score.samples for outcome in sound),
            score=sum(outcome.score.score for outcome in sound),
            fallbacks=sum(outcome.fallbacks for outcome in sound),
            bytes_up=sum(nbytes(outcome.reply.message) for outcome in arrived),
            forward_passes=max((outcome.forward_passes for outcome in outcomes), default=0),
            backward_passes=max((outcome.backward_passes for outcome in outcomes), default=0),
            seconds=seconds_of(outcomes),
        )

    def __add__(self, other: Tally) -> Tally:
        most = {"forward_passes", "backward_passes", "seconds"}
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return Tally(**{name: max(pair) if name in most else sum(pair) for name, pair in pairs.items()})


def replies_of(outcomes: Iterable[Outcome]) -> dict[int, Reply]:
    """The replies by the position of their client; one that stands for several once, where the first of them is."""
    first: dict[int, tuple[int, Reply]] = {}
    for outcome in outcomes:
        first.setdefault(id(outcome.reply), (outcome.position, outcome.reply))
    return dict(first.values())


def seconds_of(outcomes: Iterable[Outcome]) -> float:
    """How long the clients' work took: as long as that of the busiest worker, evaluation left out."""
    busy: dict[int, float] = {}
    for outcome in outcomes:
        busy[outcome.worker] = busy.get(outcome.worker, 0.0) + outcome.seconds
    return max(busy.values(), default=0.0)
