"""Where client work runs: what the round loop asks of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pflego.algorithms.base import Reply, Round
from pflego.evaluation import Score
from pflego.federation import ClientId
from pflego.weights import Weights


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


def seconds_of(outcomes: Iterable[Outcome]) -> float:
    """How long the clients' work took: as long as that of the busiest worker, evaluation left out."""
    busy: dict[int, float] = {}
    for outcome in outcomes:
        busy[outcome.worker] = busy.get(outcome.worker, 0.0) + outcome.seconds
    return max(busy.values(), default=0.0)
