"""How contributions become one: a rule that knows neither the method nor where clients work.

A rule of your own is a class with `additive` and `combine`; `train(..., aggregation=Rule())` takes it, and settings by
module:Name. robust.py has rules that bound what liars can do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from pflego.declaration import load_object
from pflego.errors import SettingError, UserError
from pflego.exchange.robust import GeometricMedian, Krum, Median, NormBound, TrimmedMean
from pflego.weights import Weights, weighted_sum

_WITH_VALUES = {"median", "geometric", "trimmed", "krum", "normbound"}


@runtime_checkable
class Aggregation(Protocol):
    """A rule for the contributions of a round."""

    @property
    def additive(self) -> bool:
        """Whether sums of some contributions may stand for them: clients are then added up before anything is sent.

        `combine` then gets their weighted sum, as one contribution.
        """
        ...

    def combine(self, contributions: Sequence[Weights], weights: Sequence[float]) -> Weights:
        """Combine contributions, which have the same names, in the order of the federation."""
        ...


@dataclass(frozen=True)
class Mean:
    """sum_i w_i c_i, which is what every method here was written for."""

    additive: ClassVar[bool] = True

    def combine(self, contributions: Sequence[Weights], weights: Sequence[float]) -> Weights:
        """Add up."""
        return weighted_sum(zip(weights, contributions, strict=True))

    def __str__(self) -> str:
        return "mean"


@dataclass(frozen=True)
class Guest:
    """A rule that somebody else has written, and the name it was found by: module:Name."""

    name: str
    rule: Aggregation

    @property
    def additive(self) -> bool:
        """Do as the rule does."""
        return self.rule.additive

    def combine(self, contributions: Sequence[Weights], weights: Sequence[float]) -> Weights:
        """Do as the rule does."""
        return self.rule.combine(contributions, weights)

    def __str__(self) -> str:
        return self.name


def aggregation_of(given: object) -> Aggregation:
    """Make a rule of what was given: one itself, or a text.

    >>> aggregation_of("trimmed:0.2"), aggregation_of("krum:2/5"), str(aggregation_of("median:weighted"))
    (TrimmedMean(share=0.2, weighted=False), Krum(bad=2, best=5), 'median:weighted')
    """
    if isinstance(given, str):
        return _read(given.strip())
    if isinstance(given, Aggregation) and not isinstance(given, type):
        return given
    raise SettingError(f"aggregation must be a rule like Mean(), or a text like median, not {given!r}")


def spelled(rule: Aggregation) -> str:
    """Give the text that settings have for a rule; of one that says nothing of itself, how Python shows it."""
    return str(rule) if type(rule).__str__ is not object.__str__ else repr(rule)


def _read(text: str) -> Aggregation:
    kind, _, value = text.partition(":")
    if kind.lower() not in _WITH_VALUES and re.fullmatch(r"[\w.]+:[\w.]+", text):
        return _guest(text)
    try:
        match kind.lower(), value:
            case "mean", "":
                return Mean()
            case "median", "" | "weighted":
                return Median(bool(value))
            case "geometric", "" | "weighted":
                return GeometricMedian(bool(value))
            case "trimmed", _:
                share, _, weighted = value.partition("/")
                if weighted in ("", "weighted"):
                    return TrimmedMean(float(share), bool(weighted))
            case "krum", _:
                bad, _, best = value.partition("/")
                return Krum(int(bad), int(best or 1))
            case "normbound", _:
                return NormBound(float(value) if value else None)
    except UserError as error:
        raise SettingError(f"aggregation {text!r}: {error}") from error
    except ValueError:
        pass
    raise SettingError(
        f"cannot read aggregation {text!r}: give mean, median, trimmed:0.2, krum:2 (or krum:2/5: the mean of the best "
        "five), geometric, normbound, or module:Name of a rule of your own"
    )


def _guest(text: str) -> Aggregation:
    found = load_object(text, "aggregation")
    try:
        rule = found() if isinstance(found, type) else found
    except TypeError as error:
        raise SettingError(f"aggregation {text!r} cannot be made without arguments: {error}") from error
    if not isinstance(rule, Aggregation):
        raise SettingError(f"aggregation {text!r} is no rule: it needs additive and combine")
    return Guest(text, rule)
