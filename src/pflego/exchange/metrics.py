"""What clients measure: named numbers, each with the way it is combined with the others'.

A metric that a method returns in `Update.metrics` is found in the history under its name, whatever engine ran it.

>>> ours, theirs = {"norm": mean(2.0, weight=30)}, {"norm": mean(5.0, weight=10)}
>>> combine([ours, theirs])["norm"].value
2.75
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias

from pflego.errors import SettingError

ABOVE_BOUND = (
    "above_bound"  # clients that stepped at a rate above the bound of the theory: training warns of the first
)
RATE_OVER_BOUND = "rate_over_bound"  # the largest ratio of the two

How: TypeAlias = Literal["sum", "mean", "largest"]


@dataclass(frozen=True)
class Metric:
    """A number, of one client or of several together."""

    total: float  # of a mean: the sum of weight times value
    how: How
    weight: float = 1.0  # of a mean: the sum of weights

    @property
    def value(self) -> float | None:
        """What people read; None for a mean of nothing."""
        if self.how != "mean":
            return self.total
        return self.total / self.weight if self.weight else None

    def __add__(self, other: Metric) -> Metric:
        if self.how != other.how:
            raise SettingError(
                f"a metric is combined by {self.how} here and by {other.how} there: give it two names"
            )
        if self.how == "largest":
            return max(self, other, key=lambda metric: metric.total)
        return Metric(self.total + other.total, self.how, self.weight + other.weight)


Metrics: TypeAlias = Mapping[str, Metric]

_TAKEN = {
    "round", "participants", "loss", "test", "training", "seconds", "bytes_up", "bytes_down", "forward_passes",
    "backward_passes", "missing", "rejected", "refused", "joint_loss", "members", "joined", "left", "waited",
    "slowest", "epsilon", "trunk_passes",
}  # fmt: skip


def check_names(metrics: Metrics) -> None:
    """Refuse metrics of a method that are called like a column that every history has."""
    for name in metrics:
        if name in _TAKEN or name.startswith(("participants_", "everyone_")):
            raise SettingError(f"a metric cannot be called {name!r}: the history has that column already")


def total(value: float) -> Metric:
    """Make a metric that is added up over clients."""
    return Metric(value, "sum")


def mean(value: float, weight: float = 1.0) -> Metric:
    """Make a metric that is averaged over clients, by weights."""
    return Metric(value * weight, "mean", weight)


def largest(value: float) -> Metric:
    """Make a metric of which the largest counts."""
    return Metric(value, "largest")


def combine(parts: Iterable[Metrics]) -> dict[str, Metric]:
    """Combine the metrics of several clients, name by name."""
    named: dict[str, list[Metric]] = {}
    for part in parts:
        for name, metric in part.items():
            named.setdefault(name, []).append(metric)
    return {name: _together(metrics) for name, metrics in named.items()}


def _together(metrics: Sequence[Metric]) -> Metric:
    """Combine many metrics of one name, in their order."""
    first = metrics[0]
    if len(metrics) == 1:
        return first
    if len({metric.how for metric in metrics}) > 1:
        return reduce(operator.add, metrics)  # which refuses them
    if first.how == "largest":
        return max(metrics, key=lambda metric: metric.total)
    total, weight = first.total, first.weight
    for metric in metrics[1:]:
        total += metric.total
        weight += metric.weight
    return Metric(total, first.how, weight)
