"""From figures to words: does it pay, and how sure is that?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from pflego.advice.contest import Contest, Fair
from pflego.advice.statistics import PROBABLY, SURE, Floats, Interval, interval_of, resampled
from pflego.learning.task import Task
from pflego.report.words import Metric

Verdict: TypeAlias = Literal["yes", "probably", "no difference", "can't tell", "probably not", "no"]

FEWEST = 6  # with fewer clients, even if all gain, that is no rarer than 1 in 20 by chance: 2 * 0.5^5 = 0.06
MARGIN = 0.01  # what matters: a point of accuracy,
RELATIVE_MARGIN = 0.02  # or so much of the other side's rmse
SHRUNK = 2 / 3  # a lead that is less than this of what it was at two thirds of the rounds is shrinking

CERTAINTY = (
    f"yes, no: the {100 * SURE:g} % interval of the difference does not contain 0. probably: the {100 * PROBABLY:g} % "
    f"interval does not, or the lead was shrinking as training went on. no difference: the {100 * SURE:g} % interval "
    f"lies within {100 * MARGIN:g} point of accuracy, or {100 * RELATIVE_MARGIN:g} % of the rmse. can't tell: anything "
    f"else."
)


@dataclass(frozen=True)
class Answer:
    """A question, answered by what clients gain on samples that were held out. Gains are positive for better."""

    question: str
    verdict: Verdict
    gain: float  # over all samples, in the metric's unit
    interval: Interval  # 95 %
    interval_80: Interval
    over: str  # whether the interval is over clients, or over samples of the clients there are
    better: int  # clients that gain
    worse: int
    clients: int
    gains: dict[str, float]  # a client each
    ours: tuple[str, ...]  # the contenders that were compared, one per split
    theirs: tuple[str, ...]
    shrinking: bool

    def words(self, metric: Metric, *, over: str) -> str:
        """Put the answer in a sentence; `over` names what the gain is over."""
        figure = difference(self.gain, self.interval, metric)
        match self.verdict:
            case "no difference":
                return f"No difference that matters: {figure}."
            case "can't tell":
                shown = f"{self.clients} clients"
                if self.over == "samples":
                    shown = f"the held-out samples of {shown}"
                return f"Can't tell: the difference, {figure}, is smaller than what {shown} can show."
            case "yes" | "probably":
                said = f"{self.verdict.capitalize()}, over {over}"
            case _:
                said = f"{self.verdict.capitalize()}, {over} does better"
        shrinking = "; the lead was shrinking" if self.shrinking else ""
        return (
            f"{said}: {figure}; {self.better} of {self.clients} clients gain, {self.worse} lose{shrinking}."
        )


def answer(
    question: str,
    ours: Fair,
    theirs: Fair,
    ids: Sequence[str],
    task: Task,
    *,
    shrinking: bool,
    seed: int,
) -> Answer:
    """Compare two sides on the same samples, by a paired bootstrap over clients.

    With few clients it is over their samples instead: then it speaks of these clients, not of others like them.
    """
    sign = 1 if task.higher_is_better else -1
    sums = np.stack([ours.scores, theirs.scores, np.ones(len(ours.scores))], axis=1)  # (samples, 3)
    clients, owners = np.unique(ours.owners, return_inverse=True)
    by_client: Floats = np.stack(
        [np.bincount(owners, weights=column) for column in sums.T], axis=1
    )  # (clients, 3)

    def gain(totals: Floats) -> Floats:
        figures = np.vectorize(task.metric_value, otypes=[float])(totals[..., :2] / totals[..., 2:])
        return np.asarray(sign * (figures[..., 0] - figures[..., 1]))

    enough = len(clients) >= FEWEST
    units, strata = (by_client, np.zeros(len(clients), np.int64)) if enough else (sums, owners)
    drawn = gain(resampled(units, strata, seed=seed))
    sure, probable = (interval_of(drawn, len(units), level) for level in (SURE, PROBABLY))
    gains = gain(by_client)
    whole = by_client.sum(axis=0)
    reference = task.metric_value(float(whole[1] / whole[2]))
    margin = MARGIN if task.higher_is_better else RELATIVE_MARGIN * reference
    if task.higher_is_better and 3 / len(sums) > margin:
        margin = 0.0  # where no sample of n differs, one in n / 3 still may: too few to say that there is no difference
    return Answer(
        question,
        judge(sure, probable, margin=margin, shrinking=shrinking),
        float(gain(whole)),
        sure,
        probable,
        "clients" if enough else "samples",
        better=int((gains > 0).sum()),
        worse=int((gains < 0).sum()),
        clients=len(clients),
        gains={ids[client]: float(own) for client, own in zip(clients, gains, strict=True)},
        ours=tuple(candidate.name for candidate in ours.chosen),
        theirs=tuple(candidate.name for candidate in theirs.chosen),
        shrinking=shrinking,
    )


def judge(sure: Interval, probable: Interval, *, margin: float, shrinking: bool = False) -> Verdict:
    """Turn intervals into a word, as `CERTAINTY` says.

    >>> judge(Interval(0.012, 0.03), Interval(0.015, 0.025), margin=0.01)
    'yes'
    >>> judge(Interval(-0.012, 0.03), Interval(-0.002, 0.02), margin=0.01)
    "can't tell"
    """
    if -margin < sure.low and sure.high < margin:
        return "no difference"
    if probable.low > 0:
        return "yes" if sure.low > 0 and not shrinking else "probably"
    if probable.high < 0:
        return "no" if sure.high < 0 and not shrinking else "probably not"
    return "can't tell"


def shrinks(contest: Contest, ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Tell whether the lead of the one that leads became much smaller in the last third of the rounds."""
    sign = 1 if contest.task.higher_is_better else -1
    curves = [contest.curve(contest.best(names)) for names in (ours, theirs)]
    last = curves[0][-1][0]
    before = min(
        (round_number for round_number, _ in curves[0]),
        key=lambda round_number: abs(round_number - 2 * last / 3),
    )
    leads = [
        sign * (dict(curves[0])[round_number] - dict(curves[1])[round_number])
        for round_number in (before, last)
    ]
    if leads[0] < 0:
        leads = [-lead for lead in leads]
    return leads[0] > 0 and leads[1] < SHRUNK * leads[0]


def difference(gain: float, sure: Interval, metric: Metric) -> str:
    """Format a gain and its interval, as people read them.

    >>> accuracy, rmse = Metric("accuracy", 100.0, "%", "points", True), Metric("rmse", 1.0, "", "", False)
    >>> difference(0.021, Interval(0.012, 0.03), accuracy)
    '+2.1 points (1.2 to 3.0)'
    >>> difference(0.043, Interval(0.01, 0.07), rmse)
    'rmse 0.043 lower (0.01 to 0.07)'
    >>> difference(-0.043, Interval(-0.07, 0.01), rmse)
    'rmse 0.043 higher (0.07 higher to 0.01 lower)'
    """
    if metric.unit == "%":
        shown, low, high = (number(metric.scale * value, 1) for value in (gain, sure.low, sure.high))
        return f"{'' if shown.startswith('−') else '+'}{shown} points ({low} to {high})"
    size = {value: f"{abs(value):.2g}" for value in (sure.low, sure.high)}
    side = {value: "lower" if value >= 0 else "higher" for value in (gain, sure.low, sure.high)}
    if len(set(side.values())) == 1:
        nearest, farthest = sorted((sure.low, sure.high), key=abs)
        within = f"{size[nearest]} to {size[farthest]}"
    else:
        within = f"{size[sure.low]} {side[sure.low]} to {size[sure.high]} {side[sure.high]}"
    return f"{metric.name} {abs(gain):.3g} {side[gain]} ({within})"


def size(value: float, metric: Metric) -> str:
    """Format how far two figures are apart.

    >>> size(0.021, Metric("accuracy", 100.0, "%", "points", True)), size(0.0432, Metric("rmse", 1.0, "", "", False))
    ('2.1 points', '0.0432')
    """
    return f"{metric.scale * value:.1f} points" if metric.unit == "%" else f"{value:.3g}"


def number(value: float, digits: int = 2) -> str:
    """Format a number with a true minus sign, and without a negative zero.

    >>> number(-0.061), number(-0.001)
    ('−0.06', '0.00')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
