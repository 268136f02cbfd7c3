"""How contributions become one: a rule that knows neither the method nor where clients work.

A rule of your own is a class with `additive` and `combine`; `train(..., aggregation=Rule())` takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch

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


@dataclass(frozen=True)
class Median:
    """The coordinate-wise median of the contributions, times sum_i w_i: what a few liars send has a bounded effect.

    Of an even number it is the mean of the middle two. Clients count the same, whatever their weights.
    """

    additive: ClassVar[bool] = False

    def combine(self, contributions: Sequence[Weights], weights: Sequence[float]) -> Weights:
        """Take the median of every number."""
        scale, count = sum(weights), len(contributions)
        combined: Weights = {}
        for name, first in contributions[0].items():
            ordered = torch.stack([c[name].double() for c in contributions]).sort(dim=0).values
            middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
            combined[name] = (middle * scale).to(torch.result_type(first, scale))  # of whole numbers too
        return combined
