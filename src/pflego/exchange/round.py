"""What a client is told of a round, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pflego.exchange.metrics import Metric
from pflego.weights import Weights


@dataclass(frozen=True)
class Round:
    """What a client, or the server, knows of a round."""

    number: int  # t, from 1
    scale: float = 1.0  # I/r, the inverse of the client's chance to take part
    # a_i, the weight of the client's loss in the federation's; in the server's step, what turns its weighted sum
    # into sum_i a_i c_i over those who were asked
    alpha: float = 1.0
    seed: int = 0
    exchange: int = 0  # which of the method's exchanges in this round, from 0


@dataclass(frozen=True)
class Update:
    """What a client has done: what it keeps, and what it sends."""

    state: Weights
    contribution: Weights = field(default_factory=dict)  # differences or gradients, never weights
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # what it measured, by name
    loss: float | None = None  # after the last step; None: not known without another pass
    model: Weights | None = None  # its model right after its steps, where `personal` would not give it
