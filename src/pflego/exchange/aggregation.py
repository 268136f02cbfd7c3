"""How contributions become one: a rule that knows neither the method nor where clients work.

A rule of your own is a class with `additive` and `combine`; `train(..., aggregation=Rule())` takes it. robust.py has
rules that bound what liars can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from pflego.weights import Weights, weighted_sum


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
