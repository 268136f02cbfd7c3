"""The tau - 1 head steps, held to the paper's condition: they must not end above the loss they began with.

Plain gradient descent is let go as it is: its rate is the user's, or 1/L_i. Momentum and Adam, where they would end
higher, are tried again with a tenth of the rate, twice, and then given up for the old head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from pflego.learning.heads import Descent
from pflego.learning.problem import Problem
from pflego.weights import Weights

_AGAIN = 2  # times that a head that went uphill is tried again with a tenth of the rate


@dataclass(frozen=True)
class HeadWork:
    """What came of the steps."""

    head: Weights
    descent: Descent
    fallbacks: int  # 1 if they went uphill at first


def guarded_steps(
    problem: Problem, head: Weights, features: Tensor, steps: int, descent: Descent
) -> HeadWork:
    """Take head steps that do not end above the loss they began with."""
    stepped = problem.head_steps(head, features, steps, descent)
    if descent.rule == "gd":
        return HeadWork(stepped, descent, 0)
    before = problem.head_loss(head, features)
    slower = descent
    for attempt in range(_AGAIN + 1):
        if problem.head_loss(stepped, features) <= before:
            return HeadWork(stepped, descent, min(attempt, 1))
        if attempt < _AGAIN:
            slower = replace(slower, rate=slower.rate / 10)
            stepped = problem.head_steps(head, features, steps, slower)
    return HeadWork(head, descent, 1)
