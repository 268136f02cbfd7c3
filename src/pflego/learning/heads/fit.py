"""What a client does that comes when the others have trained: it fits a head to a backbone that does not move.

    W <- W - grad_W l_i(W, theta) H^-1,  until a hundred more steps would hardly lower the loss

One forward pass serves all steps. H bounds the Hessian of the client's loss in its head (bound.py), so there is no
rate to choose; where no bound holds everywhere, see downhill.py.
"""

from __future__ import annotations

from torch import Tensor

from pflego.learning.heads import Descent
from pflego.learning.heads.downhill import steps_downhill
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
        goal = problem.head_bound(head, features).descent(decay, anchor)

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
