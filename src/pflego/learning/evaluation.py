"""How good the clients' models are on their own test data.

Two protocols. `participants`: the clients of a round, each with its weights right after its local steps and
before aggregation, as in the paper's tables. `everyone`: all clients, each with the present shared weights and
its own state, which is what a user would meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypedDict

from pflego.federation.roster import ClientId
from pflego.learning.task import Task


@dataclass(frozen=True)
class Score:
    """A client's test result, in sums that can be pooled."""

    samples: int
    loss: float | None  # mean; None where no test sample has a class the model knows
    score: float  # the sum of the task's scores

    def value(self, task: Task) -> float | None:
        """Compute the task's metric for this client alone; None without test samples."""
        return pooled([self], task)


class Pooled(list[Score]):
    """Results of which the sum alone is known: nobody has one of its own.

    Parameters
    ----------
    total
        The sum.
    clients
        How many clients there are.
    """

    def __init__(self, total: Score, clients: int) -> None:
        super().__init__([Score(0, None, 0.0)] * clients)
        self.total = total


class Row(TypedDict, total=False):
    """A client's line in `Run.evaluate`; the metric's key is the task's: accuracy, or rmse in regression."""

    id: ClientId
    samples: int
    loss: float | None
    accuracy: float | None
    rmse: float | None


def table(clients: Iterable[ClientId], scores: Iterable[Score], task: Task) -> list[Row]:
    """Make one row per client."""
    rows: list[Row] = []
    for client, score in zip(clients, scores, strict=True):
        row: Row = {"id": client, "samples": score.samples, "loss": score.loss}
        row[task.metric] = score.value(task)  # type: ignore[literal-required]
        rows.append(row)
    return rows


def pooled(scores: Iterable[Score], task: Task) -> float | None:
    """Compute the task's metric over several clients' samples; None if there are none or it is not finite."""
    scores = [scores.total] if isinstance(scores, Pooled) else list(scores)
    samples = sum(score.samples for score in scores)
    total = sum(score.score for score in scores)
    return task.metric_value(total / samples) if samples and isfinite(total) else None


def gini(figures: Sequence[float | None]) -> float | None:
    """Compute the Gini coefficient over the clients that have a figure: 0 all alike, near 1 one has everything.

        sum_ij |x_i - x_j| / (2 n^2 mean)

    >>> gini([0.5, 0.5, None]), gini([0.0, 0.0, 0.0, 1.0])
    (0.0, 0.75)
    """
    known = sorted(f for f in figures if f is not None)
    if not known or not (total := sum(known)):
        return None
    n = len(known)
    return sum((2 * rank - n + 1) * figure for rank, figure in enumerate(known)) / (n * total)


def worst_tenth(figures: Sequence[float | None], *, higher_is_better: bool) -> float | None:
    """Compute the mean metric over the worst tenth of the clients that have one (at least one client).

    >>> worst_tenth([0.5, 0.9, 1.0, None], higher_is_better=True)
    0.5
    """
    ranked = sorted((f for f in figures if f is not None), reverse=not higher_is_better)
    worst = ranked[: max(1, round(len(ranked) / 10))]
    return sum(worst) / len(worst) if worst else None
