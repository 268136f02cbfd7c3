"""What a client does that comes when the others have trained: it fits a head to a backbone that does not move.

    W <- W - 1/L_i grad_W l_i(W, theta),  until a hundred more steps would hardly lower the loss

One forward pass serves all steps. L_i is the smoothness constant of the client's loss as a function of its head, so
there is no rate to choose.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from pflego.learning.heads import Descent
from pflego.learning.problem import Problem
from pflego.learning.theory import best_rate
from pflego.weights import Weights

_STEPS = 100  # between two looks at the loss
_ENOUGH = 1e-4  # the share of the first loss that they must gain for more of them to follow
_MOST = 5_000  # steps in all
_SLOWEST = 1e-3  # the smallest part of 1/L that is tried where the loss went up, as it may where L changes


def fit_head(
    problem: Problem,
    head: Weights,
    features: Tensor,
    *,
    steps: int | None = None,
    decay: float = 0.0,
    anchor: Weights | None = None,
) -> Weights:
    """Give a head fitted to features, (samples, M): after this many steps, or if none are given, when it is done.

    With a decay, the loss has decay/2 |W - anchor|^2 in addition.
    """
    goal = Descent(rate=0.0, decay=decay, anchor=anchor)

    def rate() -> float:
        return best_rate(problem.head_smoothness(head, features) + decay)

    if steps is not None:
        return problem.head_steps(head, features, steps, replace(goal, rate=rate()))
    first = now = _objective(problem, head, features, goal)
    part = 1.0
    for _ in range(_MOST // _STEPS):
        fitted = problem.head_steps(head, features, _STEPS, replace(goal, rate=part * rate()))
        after = _objective(problem, fitted, features, goal)
        if after <= now:
            gained, head, now = now - after, fitted, after
            if gained < _ENOUGH * first:
                break
        else:
            part /= 10
            if part < _SLOWEST:
                break
    return head


def _objective(problem: Problem, head: Weights, features: Tensor, goal: Descent) -> float:
    loss = problem.head_loss(head, features)
    if not goal.decay:
        return loss
    pull = sum(float(slope.square().sum()) for slope in goal.pull(head).values())  # decay^2 |W - anchor|^2
    return loss + pull / (2 * goal.decay)
