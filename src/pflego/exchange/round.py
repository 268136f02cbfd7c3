"""What a client is told of a round, and what it gives."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, field

from pflego.exchange.metrics import Metric
from pflego.exchange.objective import Emphasis
from pflego.federation.client import ClientId
from pflego.weights import Weights

_OF = "\n"  # between a name and a client's id: no parameter of a module has it in its name


@dataclass(frozen=True)
class Round:
    """What a client, or the server, knows of a round."""

    number: int  # t, from 1
    scale: float = 1.0  # 1/pi_i, the inverse of the client's chance to take part; the server's: the largest
    largest_scale: float = (
        1.0  # the largest factor of anybody's contribution: the server's rates depend on it
    )
    # a_i, the weight of the client's loss in the federation's; in the server's step, what turns its weighted sum
    # into sum_i a_i c_i over those who were asked, where all were as likely to be
    alpha: float = 1.0
    seed: int = 0
    emphasis: Emphasis | None = None  # by which the client's loss changes how much its gradient counts
    exchange: int = 0  # which of the method's exchanges in this round, from 0

    def told(self, alpha: float, scale: float) -> Round:
        """Give what one client is told of it."""
        return Round(self.number, scale, self.largest_scale, alpha, self.seed, self.emphasis, self.exchange)


@dataclass(frozen=True)
class Update:
    """What a client has done: what it keeps, and what it sends."""

    state: Weights
    contribution: Weights = field(default_factory=dict)  # differences or gradients, never weights
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # what it measured, by name
    loss: float | None = None  # after the last step; None: not known without another pass
    joint_loss: float | None = None  # where the gradient that it sends was taken, for objectives
    model: Weights | None = None  # its model right after its steps, where `personal` would not give it


def of_client(name: str, client: ClientId) -> str:
    """Give the name, among the server's, of what belongs to one client."""
    return f"{name}{_OF}{client!r}"


def by_client(weights: Weights) -> dict[ClientId, Weights]:
    """Map client to what is its own among the server's, in the order of their ids' spelling.

    >>> import torch
    >>> by_client({of_client("head", "b"): torch.ones(1), of_client("head", 7): torch.zeros(1), "w": torch.ones(1)})
    {'b': {'head': tensor([1.])}, 7: {'head': tensor([0.])}}
    """
    found: dict[ClientId, Weights] = {}
    for full in sorted((name for name in weights if _OF in name), key=lambda name: name.partition(_OF)[2]):
        name, _, client = full.partition(_OF)
        found.setdefault(literal_eval(client), {})[name] = weights[full]
    return found
