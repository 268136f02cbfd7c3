"""How much of a difference could be chance: the bootstrap, over clients or over samples.

Units are drawn again with replacement, as many as there are, thousands of times; what the figure does then is what
it might have been with other units. Percentiles are taken a little further out than the level says (Hesterberg's
expanded percentiles): with n units the plain ones are too narrow by about sqrt((n - 1) / n) and by what Student's t
lies beyond the normal distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from pflego.randomness import numpy_generator

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

DRAWS = 4000
_DEALS = 200  # how often samples are dealt out at random
_RARELY = 0.99
_MOST_COUNTS = 10**7  # in memory at once
SURE, PROBABLY = 0.95, 0.8  # the levels of intervals


@dataclass(frozen=True)
class Interval:
    """Where a figure may lie."""

    low: float
    high: float


@dataclass(frozen=True)
class Chance:
    """A figure from 0 to 1, and what it is by chance alone: its mean, and what one deal in a hundred exceeds."""

    value: float
    by_chance: float
    rarely: float

    @property
    def real(self) -> bool:
        """Whether it is more than chance gives, but for one time in a hundred."""
        return self.value > self.rarely

    @property
    def beyond(self) -> float:
        """How much of what lies between chance and 1 it reaches: 0 what chance gives, 1 all there can be."""
        return (self.value - self.by_chance) / (1 - self.by_chance) if self.by_chance < 1 else 0.0


def resampled(sums: Floats, strata: Integers, *, seed: int, draws: int = DRAWS) -> Floats:
    """Resample totals of units, (units, columns), with replacement within their strata: (draws, columns)."""
    generator = numpy_generator(seed, "bootstrap")
    totals = np.zeros((draws, sums.shape[1]))
    for stratum in np.unique(strata):
        own = sums[strata == stratum]
        some = max(1, _MOST_COUNTS // len(own))  # draws at a time
        for first in range(0, draws, some):
            part = totals[first : first + some]
            part += _counts(len(own), generator, len(part)) @ own
    return totals


def of_pairs(matrix: Floats, *, seed: int, draws: int = DRAWS) -> Floats:
    """Resample the mean over pairs of different clients, (clients, clients), by drawing clients: (draws,).

    A client that is drawn twice is no pair with itself. Draws of one client alone say nothing, and are left out.
    """
    counts = _counts(len(matrix), numpy_generator(seed, "bootstrap"), draws)
    apart = matrix - np.diag(np.diag(matrix))
    sums = np.einsum("di,ij,dj->d", counts, apart, counts, optimize=True)
    pairs = counts.sum(axis=1) ** 2 - (counts**2).sum(axis=1)
    return np.asarray(sums[pairs > 0] / pairs[pairs > 0])


def pair_mean(matrix: Floats) -> float:
    """Compute the mean over the pairs of different clients.

    >>> pair_mean(np.array([[9.0, 1.0], [3.0, 9.0]]))
    2.0
    """
    n = len(matrix)
    return float((matrix.sum() - np.trace(matrix)) / (n * (n - 1)))


def interval_of(values: Floats, units: int, level: float = SURE) -> Interval:
    """Compute the interval where the figure may lie, from its values when its units were drawn again."""
    from scipy.special import ndtr, stdtrit

    further = stdtrit(units - 1, (1 + level) / 2) * sqrt(units / (units - 1))
    tail = float(ndtr(-further))
    low, high = np.quantile(values, [tail, 1 - tail])
    return Interval(float(low), float(high))


def beside_chance(value: float, dealt: Callable[[np.random.Generator], float], *, seed: int) -> Chance:
    """Set a figure beside what it is where samples are dealt out to the clients at random."""
    generator = numpy_generator(seed, "chance")
    drawn = np.array([dealt(generator) for _ in range(_DEALS)])
    return Chance(value, float(drawn.mean()), float(np.quantile(drawn, _RARELY)))


def _counts(units: int, generator: np.random.Generator, draws: int) -> Floats:
    """Draw how often each unit occurs in each bootstrap sample, (draws, units)."""
    return generator.multinomial(units, np.full(units, 1 / units), size=draws).astype(np.float64)
