"""What a run came to, in a few figures: what the command line, comparisons and reports say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, pstdev
from typing import Literal

from pflego.exchange.weighting import WEIGHTINGS
from pflego.federation.remote import RemoteFederation
from pflego.federation.roster import ClientId
from pflego.learning.ceiling import ceiling
from pflego.learning.evaluation import gini, pooled, worst_tenth
from pflego.runs.history import HistoryRow
from pflego.runs.privacy import Spent
from pflego.runs.run import Run, members_only

# What the figures of a run are of, in a sentence each: for whoever shows them.
EXPLAINED = {
    "participants": "a round's participants, each after its own local steps and before aggregation",
    "everyone": "all clients, each with the shared weights as they are and with what it keeps",
    "everyone_adapted": "all clients, each after the local steps that a participant takes before it is judged",
    "client_mean": "everyone's, averaged over clients instead of samples",
    "ceiling": "the most a model for everybody can reach unadapted, as outputs are numbered anew on every client",
}

LAST = 10  # the participants' figure is a mean over the last ten rounds, as in the paper's tables

Curves = dict[str, list[tuple[int, float]]]


def curves_of(history: Sequence[HistoryRow], metric: str) -> Curves:
    """Return curves of (round, value), where they are known: loss, and the figures of participants and everyone."""
    keys = {
        "loss": "loss",
        "participants": f"participants_{metric}",
        "training": f"participants_training_{metric}",
        "everyone": f"everyone_{metric}",
        "everyone_adapted": f"everyone_adapted_{metric}",
    }
    return {
        name: [
            (int(row["round"] or 0), value)
            for row in history
            if (value := row.get(key)) is not None and isfinite(value)
        ]
        for name, key in keys.items()
    }


@dataclass(frozen=True)
class Evaluation:
    """How good everyone's models are after a round."""

    round: int
    everyone: float | None  # over the test samples of all clients together
    figures: Sequence[float | None]  # every client's own, in the order of the federation

    @classmethod
    def of(cls, run: Run) -> Evaluation | None:
        """Return the last one; where rounds were done or clients came since, evaluate everyone once more.

        That is not done where it was not wanted in training (evaluate_every=None) or data are elsewhere; None if there
        is no evaluation at all.
        """
        task, done = run.federation.task, len(run.history)
        never = run.plan.evaluate_every is None or isinstance(run.federation, RemoteFederation)
        fresh = done in run.evaluations and all(after < done for after in run.plan.joined_after)
        if done and not fresh and not never:
            scores = members_only(run, done, run.scores())
            return cls(done, pooled(scores, task), [score.value(task) for score in scores])
        if not run.evaluations:
            return None
        last = max(run.evaluations)
        return cls(last, run.history[last - 1].get(f"everyone_{task.metric}"), run.evaluations[last])


@dataclass(frozen=True)
class Summary:
    """What a run came to."""

    algorithm: str
    clients: int
    rounds: int  # that were done
    metric: str  # accuracy, or rmse
    higher_is_better: bool
    everyone: float | None  # all clients, after the last round, over all test samples
    everyone_adapted: float | None  # after local steps of each, where that was asked for
    client_mean: float | None  # of everyone's, over clients
    ceiling: float | None  # of everyone's figure, where a shared head with local labels is used as it is
    spread: float | None  # standard deviation of the metric over clients
    worst_tenth: float | None
    gini: float | None  # of the metric over clients: 0 all alike, near 1 one has everything
    participants: float | None  # mean over the last rounds
    loss: float | None  # of the last round's participants
    forward_passes: float  # of a participant in a round, the most there were
    backward_passes: float
    bytes_up: float  # in all
    bytes_down: float
    seconds_a_round: float
    seconds: float  # work of clients and server
    waited: float | None = (
        None  # seconds that the server would have waited for replies, where that was simulated
    )
    never_heard: tuple[ClientId, ...] = ()  # asked, and never a reply
    unheard: float = 0.0  # their part of the federation's loss, by weight
    privacy: Spent | None = None  # what it cost

    @classmethod
    def of(cls, run: Run, evaluation: Evaluation | None = None) -> Summary:
        """Sum up a run. An evaluation that is there already is not made again."""
        task, history = run.federation.task, run.history
        evaluation = evaluation or Evaluation.of(run)
        figures = [] if evaluation is None else [f for f in evaluation.figures if f is not None]
        curves = curves_of(history, task.metric)
        participants = [value for _, value in curves["participants"][-LAST:]]

        silent = never_heard(run)
        importance = WEIGHTINGS[run.plan.weighting](run.federation.masses)

        def values(key: str) -> list[float]:
            return [row.get(key) or 0 for row in history]

        return cls(
            algorithm=run.algorithm.name,
            clients=len(run.federation),
            rounds=len(history),
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            everyone=None if evaluation is None else evaluation.everyone,
            everyone_adapted=_last(curves["everyone_adapted"], evaluation),
            client_mean=fmean(figures) if figures else None,
            ceiling=_ceiling(run),
            spread=pstdev(figures) if figures else None,
            worst_tenth=worst_tenth(figures, higher_is_better=task.higher_is_better),
            gini=gini(figures),
            participants=fmean(participants) if participants else None,
            loss=curves["loss"][-1][1] if curves["loss"] else None,
            forward_passes=max(values("forward_passes"), default=0),
            backward_passes=max(values("backward_passes"), default=0),
            bytes_up=sum(values("bytes_up")),
            bytes_down=sum(values("bytes_down")),
            seconds_a_round=sum(values("seconds")) / max(1, len(history)),
            seconds=sum(values("seconds")),
            waited=sum(values("waited")) if run.plan.network.timed else None,
            never_heard=silent,
            privacy=Spent.of(run),
            unheard=float(sum(importance[run.federation.position(client)] for client in silent)),
        )


def never_heard(run: Run) -> tuple[ClientId, ...]:
    """Name those who were asked to take part and never answered with anything of use."""
    if not run.silent:
        return ()
    asked: Counter[ClientId] = Counter()
    for row in run.history:
        asked.update(run.participants(int(row["round"] or 0)))
    return tuple(
        client for client, times in asked.items() if run.silent[client] + run.rejected[client] >= times
    )


def ranked_by(summaries: Sequence[Summary]) -> Literal["everyone_adapted", "everyone"]:
    """Name the figure that runs are ranked by: everyone adapted, where all of them have it.

    Adapted, every client has taken its method's local steps: methods that share a whole model and those that keep a
    part of it at home are then judged alike.
    """
    known = all(summary.everyone_adapted is not None for summary in summaries)
    return "everyone_adapted" if known else "everyone"


def _last(curve: Sequence[tuple[int, float]], evaluation: Evaluation | None) -> float | None:
    """Return a curve's value in the round that everyone was evaluated."""
    return None if evaluation is None else dict(curve).get(evaluation.round)


def _ceiling(run: Run) -> float | None:
    """Compute the most that everyone's figure can be, where that depends on who holds what and the data are here."""
    algorithm, federation = run.algorithm, run.federation
    one_model = algorithm.uses_shared_model and not run.model.personal_names and not run.model.personal_head
    if not one_model or algorithm.labels != "local" or federation.classes is None:
        return None
    if isinstance(federation, RemoteFederation):
        return None
    return ceiling((client.classes, client.y_test) for client in federation)
