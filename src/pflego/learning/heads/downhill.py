"""Gradient steps on a head whose rate follows the curvature, each held to the paper's condition.

The smoothness constant of a linear head holds at every head, so steps of 1/L always go downhill. That of any other
head is known only where it was measured, and may be tiny where the head starts and large a step further on. There, a
step of rate s along the gradient g is kept only if it lowers the loss by what a rate of at most 1/L promises,

    f(w - s g) <= f(w) - s/2 |g|^2,

and is halved otherwise; s starts at 1/L, which is measured again as the head moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from pflego.learning.heads.rules import Descent
from pflego.learning.problem import Problem
from pflego.learning.theory import best_rate
from pflego.weights import Weights, norm, plus, step

_MEASURE_EVERY = 10  # steps
_HALVINGS = 40  # of a rate that leads uphill, before the head is left where it is


@dataclass(frozen=True)
class Landing:
    """Where a step led."""

    head: Weights
    objective: float
    rate: float  # the one that was kept; 0 if none led downhill


def head_rate(problem: Problem, head: Weights, features: Tensor, decay: float) -> float:
    """1/L of what head steps descend, at this head."""
    return best_rate(problem.head_smoothness(head, features) + decay)


def steps_downhill(
    problem: Problem, head: Weights, features: Tensor, steps: int, descent: Descent
) -> Weights:
    """Take gradient steps from 1/L on, each one held to the condition."""
    objective = problem.head_objective(head, features, descent)
    rate = 0.0
    for count in range(steps):
        if count % _MEASURE_EVERY == 0:
            rate = head_rate(problem, head, features, descent.decay) or 1.0  # flat: any rate may do
        slope = slope_at(problem, head, features, descent)
        landing = step_downhill(problem, head, features, slope, rate, descent, objective=objective)
        if not landing.rate:
            break
        head, objective, rate = landing.head, landing.objective, landing.rate
    return head


def step_downhill(
    problem: Problem,
    head: Weights,
    features: Tensor,
    slope: Weights,
    rate: float,
    descent: Descent,
    *,
    objective: float | None = None,
) -> Landing:
    """Take one step along a slope, at most of this rate."""
    if objective is None:
        objective = problem.head_objective(head, features, descent)
    promise = norm(slope) ** 2 / 2
    rounding = torch.finfo(problem.model.weight_dtype).eps * abs(objective)
    if promise and isfinite(promise):
        for _ in range(_HALVINGS):
            stepped = step(head, slope, rate)
            after = problem.head_objective(stepped, features, descent)
            if after <= objective - max(rate * promise - rounding, 0):
                return Landing(stepped, after, rate)
            rate /= 2
    return Landing(head, objective, 0.0)


def slope_at(problem: Problem, head: Weights, features: Tensor, descent: Descent) -> Weights:
    """Compute the gradient of what head steps descend."""
    gradient = problem.head_gradient(head, features).head
    return plus(gradient, descent.pull(head)) if descent.decay else gradient
