"""How much a client's contribution counts.

    a_i     whose loss counts how much: they sum to one over the federation
    pi_i    how likely client i was to take part: r / I, or its own
    q_i     how likely its reply is to arrive
    w_i     = a_i / pi_i, the weight of its contribution

Over all cohorts that could have been drawn, sum_i w_i c_i is on average sum_i a_i c_i over everybody: "unbiased". A
method that averages models needs weights that sum to one over the cohort instead: "normalised".

A reply that does not arrive counts as zero (missing="zero"), or the weights of those that arrived are scaled to sum to
one where some did not (missing="renormalise"), or in every round (missing="normalise"). The last makes an unbiased sum
a mean over the cohort, which is unbiased no more where clients count differently, and varies less.

missing="inverse" divides by the chance that a contribution is there at all: w_i = a_i / (pi_i q_i), for every method
(Horvitz and Thompson, 1952). The expected step is then the one with everybody's contribution, also of a method that
averages: its weights sum to one only on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pflego.federation.roster import Masses

Floats: TypeAlias = npt.NDArray[np.float64]
Missing: TypeAlias = Literal["zero", "renormalise", "normalise", "inverse"]
Kind: TypeAlias = Literal["unbiased", "normalised"]
WeightingName: TypeAlias = Literal["samples", "equal"]


class Weighting(Protocol):
    """Says whose loss counts how much."""

    def __call__(self, masses: Masses) -> Floats:
        """Give a_i of all clients from their sample counts, or the sums of their weights; they sum to one."""
        ...


def by_samples(masses: Masses) -> Floats:
    """a_i = N_i / sum_j N_j, the paper's alpha_i: every sample counts the same, or by its weight."""
    return np.asarray(masses / masses.sum())


def equally(masses: Masses) -> Floats:
    """a_i = 1 / I: every client counts the same, whatever its size."""
    return np.full(len(masses), 1 / len(masses))


WEIGHTINGS: dict[WeightingName, Weighting] = {"samples": by_samples, "equal": equally}


@dataclass(frozen=True)
class Standing:
    """How much every client counts in a round, by position."""

    importance: Floats  # a_i
    scales: Floats  # 1 / pi_i
    arrival: float = 1.0  # q_i, the same for all; 1 where weights are not to be divided by it

    @property
    def largest_scale(self) -> float:
        """The largest factor of anybody's contribution."""
        return float(self.scales.max()) / self.arrival


def cohort_weights(importance: Sequence[float], scales: Sequence[float], kind: Kind) -> list[float]:
    """Give w_i of a cohort from a_i and 1 / pi_i.

    >>> cohort_weights([0.5, 0.25], [2.0, 2.0], "unbiased"), cohort_weights([0.375, 0.125], [2.0, 2.0], "normalised")
    ([1.0, 0.5], [0.75, 0.25])
    """
    weights = [a * scale for a, scale in zip(importance, scales, strict=True)]
    if kind == "unbiased":
        return weights
    total = sum(weights)
    return [weight / total for weight in weights]


def correction(arrived: float, *, complete: bool, missing: Missing) -> float:
    """Give the factor of all weights, from the sum of those that arrived and whether these are all.

    >>> correction(0.5, complete=False, missing="zero"), correction(0.5, complete=False, missing="renormalise")
    (1.0, 2.0)
    >>> correction(0.8, complete=True, missing="renormalise"), correction(0.8, complete=True, missing="normalise")
    (1.0, 1.25)
    """
    as_they_are = missing in ("zero", "inverse") or (missing == "renormalise" and complete) or not arrived
    return 1.0 if as_they_are else 1 / arrived
