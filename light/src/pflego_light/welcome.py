"""What a client does that comes when the others have trained: it fits a head to a backbone that does not move.

    W <- W - 1/L_i grad_W l_i(W, theta),  until a hundred more steps would hardly lower the loss

One forward pass serves all steps.
"""

from __future__ import annotations

from pflego_light.arrays import Floats
from pflego_light.head import Descent, Sight

_STEPS = 100  # between two looks at the loss
_ENOUGH = 1e-4  # the share of the first loss that they must gain for more of them to follow
_MOST = 5_000  # steps in all


def fit_head(sight: Sight, head: Floats, descent: Descent, steps: int | None) -> Floats:
    """Give a head fitted to features: after this many steps, or if none are given, when it is done."""
    if steps is not None:
        return descent.steps(sight, head, steps)
    first = now = descent.objective(sight, head)
    for _ in range(_MOST // _STEPS):
        fitted = descent.steps(sight, head, _STEPS)
        after = descent.objective(sight, fitted)
        if not after <= now:
            break
        gained, head, now = now - after, fitted, after
        if gained < _ENOUGH * first:
            break
    return head
