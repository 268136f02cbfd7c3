"""What a model asks of a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from pflego.learning.heads.bound import HessianBound
from pflego.learning.heads.rules import Descent
from pflego.learning.task import Task
from pflego.weights import Weights

HEAD = "head"  # the name of a linear head; the parameters of any other are called head.<name>
_NAMED = Literal["zeros", "uniform", "centred", "layer", "orthonormal"]
HeadInit: TypeAlias = _NAMED | Callable[[int, int, torch.Generator], Tensor]


@dataclass(frozen=True)
class HeadGradient:
    """The loss at a head, and its gradient with respect to the head and to the features."""

    loss: Tensor | float
    head: Weights
    features: Tensor  # (samples, M)


class Head(Protocol):
    """A head from M features to K outputs. `weights` may hold more than it, `features` are (samples, M)."""

    smooth_everywhere: ClassVar[
        bool
    ]  # whether `smoothness` holds at every head, or only where it was measured

    def init(self, how: HeadInit, generator: torch.Generator, dtype: torch.dtype) -> Weights:
        """Draw a first head."""
        ...

    def outputs(self, weights: Weights, features: Tensor) -> Tensor:
        """z, (samples, K)."""
        ...

    def gradient(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> HeadGradient:
        """Compute loss and joint gradient at this head."""
        ...

    def loss(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> float:
        """Compute the loss at this head."""
        ...

    def descend(
        self, weights: Weights, features: Tensor, targets: Tensor, task: Task, steps: int, descent: Descent
    ) -> Weights:
        """Take steps on the head alone; give the head."""
        ...

    def smoothness(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> float:
        """L_i of the loss as a function of the head."""
        ...

    def hessian_bound(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> HessianBound:
        """Bound the loss's Hessian in the head, the mean of the features apart where that is known."""
        ...

    def module(self, weights: Weights) -> nn.Module:
        """Return the same head as an ordinary module from features to outputs."""
        ...


def is_head(name: str) -> bool:
    """Tell whether weights of this name belong to a head."""
    return name == HEAD or name.startswith(f"{HEAD}.")
