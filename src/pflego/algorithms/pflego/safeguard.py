"""The head's steps, held to the paper's condition: they must not end above the loss they began with.

That loss is the one that the steps descend, the penalty of a decay included.

Plain gradient descent at a rate of the user's is let go as it is, and so is one at 1/L_i where that holds at every
head: it goes downhill by itself. Where L_i is known only where it was measured, every single step is held to the
condition: see learning/heads/downhill.py. Momentum and Adam, where they would end higher, are tried again with a tenth
of the rate, twice, and then given up for the old head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from torch import Tensor

from pflego.learning.head_group import HeadGroup
from pflego.learning.heads import Descent
from pflego.learning.heads.downhill import step_downhill, steps_downhill
from pflego.learning.problem import Problem
from pflego.weights import Weights, plus, step

_AGAIN = 2  # times that a head that went uphill is tried again with a tenth of the rate


@dataclass(frozen=True)
class HeadWork:
    """What came of the steps."""

    head: Weights
    descent: Descent
    fallbacks: int = 0  # 1 if they went uphill at first


def guarded_steps(
    group: HeadGroup, heads: Sequence[Weights], steps: int, descents: Sequence[Descent]
) -> list[HeadWork]:
    """Take head steps that do not end above the loss they began with."""
    if all(
        _goes_downhill(problem, descent) for problem, descent in zip(group.problems, descents, strict=True)
    ):
        return list(map(HeadWork, group.descend(heads, steps, descents), descents))
    return [
        _guarded(problem, head, features, steps, descent)
        for problem, head, features, descent in zip(group.problems, heads, group.parts, descents, strict=True)
    ]


def _goes_downhill(problem: Problem, descent: Descent) -> bool:
    """Tell whether steps are let go as they are."""
    careful = descent.follows_curvature and not problem.head.smooth_everywhere
    return descent.rule == "gd" and not careful


def _guarded(problem: Problem, head: Weights, features: Tensor, steps: int, descent: Descent) -> HeadWork:
    if descent.rule == "gd":
        return HeadWork(steps_downhill(problem, head, features, steps, descent), descent)
    before = problem.head_objective(head, features, descent)
    for attempt in range(_AGAIN + 1):
        slower = replace(descent, rate=descent.rate / 10**attempt)
        stepped = problem.head_steps(head, features, steps, slower)
        if problem.head_objective(stepped, features, descent) <= before:
            return HeadWork(stepped, descent, min(attempt, 1))
    return HeadWork(head, descent, 1)


def last_steps(
    group: HeadGroup, work: Sequence[HeadWork], gradients: Sequence[Weights], rates: Sequence[float]
) -> list[Weights]:
    """Take every head's part of the joint step."""
    together = len(work) > 1 and all(p.head.smooth_everywhere for p in group.problems)
    if together and not any(w.descent.decay for w in work):
        capped = [min(rate, w.descent.limit) for w, rate in zip(work, rates, strict=True)]
        return group.step([w.head for w in work], gradients, capped)
    return [
        _last_step(*each) for each in zip(group.problems, work, group.parts, gradients, rates, strict=True)
    ]


def _last_step(problem: Problem, work: HeadWork, features: Tensor, gradient: Weights, rate: float) -> Weights:
    """Take the head's part of the joint step, at most of the rate that its descent allows."""
    head, descent = work.head, work.descent
    slope = plus(gradient, descent.pull(head)) if descent.decay else gradient
    if descent.limit < inf and not problem.head.smooth_everywhere:
        return step_downhill(problem, head, features, slope, min(rate, descent.limit), descent).head
    return step(head, slope, min(rate, descent.limit))
