"""What a client does that comes when the others have trained: it fits a head to a backbone that does not move.

    W <- W - 1/L_i grad_W l_i(W, theta),  until a hundred more steps would hardly lower the loss

One forward pass serves all steps. L_i is the smoothness constant of the client's loss as a function of its head, so
there is no rate to choose; where it is no constant, see downhill.py.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from pflego.learning.heads import Descent
from pflego.learning.heads.downhill import head_rate, steps_downhill
from pflego.learning.problem import Problem
from pflego.weights import Weights

_STEPS = 100  # between two looks at the loss
_ENOUGH = 1e-4  # the share of the first loss that they must gain for more of them to follow
_MOST = 5_000  # steps in all


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
    if problem.head.smooth_everywhere:
        goal = replace(goal, rate=head_rate(problem, head, features, decay))

    def go_on(head: Weights, steps: int) -> Weights:
        if problem.head.smooth_everywhere:
            return problem.head_steps(head, features, steps, goal)
        return steps_downhill(problem, head, features, steps, goal)

    if steps is not None:
        return go_on(head, steps)
    first = now = problem.head_objective(head, features, goal)
    for _ in range(_MOST // _STEPS):
        fitted = go_on(head, _STEPS)
        after = problem.head_objective(fitted, features, goal)
        if not after <= now:
            break
        gained, head, now = now - after, fitted, after
        if gained < _ENOUGH * first:
            break
    return head
