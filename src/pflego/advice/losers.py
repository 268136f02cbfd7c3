"""Who would lose: clients that do better in another way than in the one that is recommended.

A gain of all together says nothing about each. A client has few held-out samples, so some do better elsewhere by chance
alone. If both ways were equally good for a client, each of its differences might as well have the other sign: where
less than one in twenty of such draws is as bad for it, its loss is called clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pflego.advice.contenders import ALONE, ONE_MODEL
from pflego.advice.contest import Contest, Fair
from pflego.advice.statistics import DRAWS, SURE, Floats
from pflego.learning.evaluation import worst_tenth
from pflego.learning.task import Task
from pflego.randomness import numpy_generator

_OTHERS = {"alone": ALONE, "with one model": (ONE_MODEL,)}
_MOST_SIGNS = 10**7  # in memory at once


@dataclass(frozen=True)
class Losers:
    """The clients that another way would be better for, on samples that were held out."""

    otherwise: str  # "alone" or "with one model"
    losses: dict[str, float]  # of those that lose, in the metric's unit, the largest first
    clear: tuple[str, ...]  # those of them whose loss is more than chance
    clients: int  # that were compared
    worst_tenth: float | None  # the figure of the worst tenth in the recommended way
    worst_tenth_otherwise: float | None


def losers(contest: Contest, chosen: str, ids: Sequence[str], *, seed: int) -> tuple[Losers, ...]:
    """Compare the chosen contender with learning alone and with one model, unless it is that itself."""
    ours = contest.fair([chosen])
    return tuple(
        _losers(words, ours, contest.fair(names), ids, contest.task, seed)
        for words, names in _OTHERS.items()
        if chosen not in names
    )


def client_figures(fair: Fair, task: Task) -> Floats:
    """Compute the figure of every client that was tried, in the order of their positions."""
    owners = np.unique(fair.owners, return_inverse=True)[1]
    means = np.bincount(owners, weights=fair.scores) / np.bincount(owners)
    return np.array([task.metric_value(float(mean)) for mean in means])


def _losers(words: str, ours: Fair, theirs: Fair, ids: Sequence[str], task: Task, seed: int) -> Losers:
    sign = 1 if task.higher_is_better else -1
    here, there = client_figures(ours, task), client_figures(theirs, task)
    losses = sign * (there - here)
    positions = np.unique(ours.owners)
    ranked = [int(k) for k in np.argsort(-losses, kind="stable") if losses[k] > 0]
    worse = sign * (theirs.scores - ours.scores)  # (samples,)
    generator = numpy_generator(seed, "losers")
    clear = [k for k in ranked if _chance(worse[ours.owners == positions[k]], generator) < 1 - SURE]
    return Losers(
        words,
        {ids[positions[k]]: float(losses[k]) for k in ranked},
        tuple(ids[positions[k]] for k in clear),
        len(positions),
        worst_tenth(here.tolist(), higher_is_better=task.higher_is_better),
        worst_tenth(there.tolist(), higher_is_better=task.higher_is_better),
    )


def _chance(differences: Floats, generator: np.random.Generator) -> float:
    """Estimate how often signs drawn at random make a sum at least as large: a one-sided sign-flip test."""
    differences = differences[differences != 0]
    total, tolerance = differences.sum(), 1e-9 * np.abs(differences).sum()
    some = max(1, _MOST_SIGNS // max(1, len(differences)))  # draws at a time
    as_large = 0
    for first in range(0, DRAWS, some):
        signs = generator.choice([-1.0, 1.0], size=(min(some, DRAWS - first), len(differences)))
        as_large += int((signs @ differences >= total - tolerance).sum())
    return (1 + as_large) / (1 + DRAWS)
