"""What a client has done in a round: what it keeps, and what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pflego_light.arrays import Weights

Metric: TypeAlias = tuple[float, str, float]  # total, how it is combined, weight


@dataclass(frozen=True)
class Update:
    """What a method gives."""

    state: Weights
    contribution: Weights
    model: Weights  # its model right after its steps
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    loss: float | None = None  # after the last step; None: not known without another pass
    joint_loss: float | None = None  # where the gradient that it sends was taken, for objectives
