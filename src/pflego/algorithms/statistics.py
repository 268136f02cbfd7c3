"""Running statistics of batch norm among weights: where they travel, they are averaged, and nothing else.

They are no weights: no gradient moves them, so that no optimiser, rate, control variate or step count of a server has
anything to do with them. Clients send how far theirs went, beside differences or gradients of weights.
"""

from __future__ import annotations

from pflego.learning.modes import is_statistic
from pflego.weights import Weights


def apart(weights: Weights) -> tuple[Weights, Weights]:
    """Divide weights into those that gradients move, and running statistics."""
    statistics = {name: w for name, w in weights.items() if is_statistic(name)}
    return {name: w for name, w in weights.items() if name not in statistics}, statistics


def averaged(shared: Weights, aggregate: Weights) -> Weights:
    """Give the shared running statistics after a round, of the mean of how far those of clients went.

    A variance stays at zero or above, also where noise was added or the weights of clients sum to more than one.
    """
    moved = {name: shared[name] + d.to(shared[name]) for name, d in apart(aggregate)[1].items()}
    return {name: w.clamp(min=0) if name.endswith("running_var") else w for name, w in moved.items()}
