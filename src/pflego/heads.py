"""The personal part of a model, and the tau cheap steps on it: the hot loop.

A linear head is one tensor W, (K, M + 1), the bias in its last column, kept in a client's state as "head".
On features Phi, (n, M + 1) with a last column of ones, targets t and residuals R = link(z) - t, both (n, K):

    z = Phi W^T        d loss / d W = R^T Phi / n        d loss / d phi = R W[:, :M] / n

so a step on the head costs two small products and no automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from pflego.errors import check_choice
from pflego.task import Task
from pflego.weights import Weights

HEAD = "head"
HeadInit: TypeAlias = Literal["zeros", "uniform"] | Callable[[int, int, torch.Generator], Tensor]


@dataclass(frozen=True)
class HeadGradient:
    """The loss at a head, and its gradient with respect to the head and to the features."""

    loss: Tensor
    head: Weights
    features: Tensor  # (samples, M)


@dataclass(frozen=True)
class LinearHead:
    """One linear layer with a bias."""

    features: int

    def init(self, outputs: int, how: HeadInit, generator: torch.Generator, dtype: torch.dtype) -> Weights:
        """Draw a first head: zeros, the paper's U[0, 1), or whatever the callable gives."""
        rows, columns = outputs, self.features + 1
        if callable(how):
            head = torch.as_tensor(how(rows, columns, generator))
            if head.shape != (rows, columns):
                raise ValueError(f"head_init gave shape {tuple(head.shape)}, asked for ({rows}, {columns})")
        elif how == "zeros":
            head = torch.zeros(rows, columns)
        else:
            head = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
        return {HEAD: head.detach().to(dtype)}

    def outputs(self, weights: Weights, features: Tensor) -> Tensor:
        """Z = phi W^T + b, (samples, K)."""
        head = weights[HEAD]
        return torch.addmm(head[:, -1], features, head[:, :-1].T)

    def loss(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> Tensor:
        """Mean loss at this head."""
        return task.loss(self.outputs(weights, features), targets)

    def gradient(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> HeadGradient:
        """Loss and joint gradient at this head, in closed form."""
        z = self.outputs(weights, features)  # (samples, K)
        slope = task.residual(z, targets).div_(len(z))  # (samples, K)
        gradient = torch.cat([slope.T @ features, slope.sum(dim=0)[:, None]], dim=1)  # (K, M + 1)
        return HeadGradient(task.loss(z, targets), {HEAD: gradient}, slope @ weights[HEAD][:, :-1])

    def descend(
        self, weights: Weights, features: Tensor, targets: Tensor, task: Task, *, steps: int, rate: float
    ) -> Weights:
        """Take gradient steps on the head alone: W <- W - rate R^T Phi / n."""
        ones = features.new_ones(len(features), 1)
        phi = torch.cat([features, ones], dim=1)  # (samples, M + 1)
        head = weights[HEAD].clone()
        for _ in range(steps):
            residual = task.residual(phi @ head.T, targets)  # (samples, K)
            head.addmm_(residual.T, phi, alpha=-rate / len(phi))
        return {HEAD: head}

    def module(self, weights: Weights) -> nn.Module:
        """Give the same head as an ordinary layer."""
        head = weights[HEAD]
        layer = nn.Linear(self.features, len(head), dtype=head.dtype, device="meta").to_empty(
            device=head.device
        )
        with torch.no_grad():
            layer.weight.copy_(head[:, :-1])
            layer.bias.copy_(head[:, -1])
        return layer


def check_head_init(how: object) -> None:
    """Refuse a way to start heads that is neither known nor a function."""
    if not callable(how):
        check_choice("head_init", how, ["zeros", "uniform"])
