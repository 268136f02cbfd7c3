"""How a head goes downhill, once it has a gradient. Every round starts afresh: features have moved meanwhile.

    gd          w <- w - rate g
    momentum    v <- mu v + g,  w <- w - rate v
    adam        as published: 0.9, 0.999, 1e-8

With a decay, g is the gradient of the loss plus decay/2 |w - anchor|^2. With a mean, g has lost a share of its part
along it (bound.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pflego.weights import Weights, norm

Rule: TypeAlias = Literal["gd", "momentum", "adam"]
RULES: tuple[Rule, ...] = ("gd", "momentum", "adam")


@dataclass(frozen=True)
class Descent:
    """A rule and its rate."""

    rate: float
    rule: Rule = "gd"
    momentum: float = 0.9
    decay: float = 0.0
    anchor: Weights | None = None  # zero if None
    limit: float = inf  # the largest rate of a single step that follows
    follows_curvature: bool = False  # whether the rate is 1/L, and not a number that somebody gave
    smoothness: float = 0.0  # L where the descent begins, if it was measured
    mean: Tensor | None = None  # (M + 1,), of the features and a column of ones, for linear heads
    share: float = 0.0  # of a slope's part along the mean, over |mean|^2, that is left out

    def pull(self, weights: Weights) -> Weights:
        """Compute the gradient of decay/2 |w - anchor|^2."""
        anchor = self.anchor or {}
        return {name: self.decay * (w - anchor[name] if name in anchor else w) for name, w in weights.items()}

    def penalty(self, weights: Weights) -> float:
        """Compute decay/2 |w - anchor|^2."""
        if not self.decay:
            return 0.0
        return norm(self.pull(weights)) ** 2 / (2 * self.decay)  # the pull is decay (w - anchor)

    def centred(self, slope: Tensor) -> Tensor:
        """Leave out a share of a slope's part along the mean, in every row of it, (..., M + 1)."""
        if self.mean is None:
            return slope
        return slope - self.share * (slope @ self.mean)[..., None] * self.mean

    def start(self) -> Callable[[Weights], Weights]:
        """Give a fresh function from gradients, one after the other, to the moves they cause."""
        move = {"gd": self._gd, "momentum": self._momentum, "adam": self._adam}[self.rule]()
        if self.mean is None:
            return move
        return lambda gradient: move({name: self.centred(g) for name, g in gradient.items()})

    def _gd(self) -> Callable[[Weights], Weights]:
        return lambda gradient: {name: g * self.rate for name, g in gradient.items()}

    def _momentum(self) -> Callable[[Weights], Weights]:
        velocity: Weights = {}

        def move(gradient: Weights) -> Weights:
            for name, g in gradient.items():
                velocity[name] = g + self.momentum * velocity[name] if name in velocity else g
            return {name: v * self.rate for name, v in velocity.items()}

        return move

    def _adam(self) -> Callable[[Weights], Weights]:
        first: Weights = {}
        second: Weights = {}
        count = 0

        def move(gradient: Weights) -> Weights:
            nonlocal count
            count += 1
            moves = {}
            for name, g in gradient.items():
                first[name] = torch.lerp(first.get(name, torch.zeros_like(g)), g, 0.1)
                second[name] = torch.lerp(second.get(name, torch.zeros_like(g)), g * g, 0.001)
                size = (second[name] / (1 - 0.999**count)).sqrt_().add_(1e-8)
                moves[name] = first[name] / size * (self.rate / (1 - 0.9**count))
            return moves

        return move
