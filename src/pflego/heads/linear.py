"""The linear head, in closed form: the hot loop.

A head is one tensor W, (K, M + 1), the bias in its last column, kept in a client's state as "head". On features
Phi, (n, M + 1) with a last column of ones, targets t and residuals R = link(z) - t, both (n, K):

    z = Phi W^T        d loss / d W = R^T Phi / n        d loss / d phi = R W[:, :M] / n

so a step on the head costs two small products and no automatic differentiation. The loop works on the transposes,
(K, n) and (M + 1, n): short and wide, they go through memory in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pflego.errors import UserError
from pflego.heads.base import HEAD, HeadGradient, HeadInit
from pflego.heads.descent import Descent
from pflego.task import Task
from pflego.theory import head_smoothness
from pflego.weights import Weights


@dataclass(frozen=True)
class LinearHead:
    """One linear layer with a bias."""

    features: int  # M
    width: int  # K

    def init(self, how: HeadInit, generator: torch.Generator, dtype: torch.dtype) -> Weights:
        """Zeros, the paper's U[0, 1), orthonormal rows (U V^T of a random matrix), or what the function gives."""
        rows, columns = self.width, self.features + 1
        if callable(how):
            head = torch.as_tensor(how(rows, columns, generator))
            if head.shape != (rows, columns):
                raise UserError(f"head_init gave shape {tuple(head.shape)}, asked for ({rows}, {columns})")
        elif how == "zeros":
            head = torch.zeros(rows, columns)
        elif how == "uniform":
            head = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
        else:
            drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
            left, _, right = torch.linalg.svd(drawn, full_matrices=False)
            head = left @ right
        return {HEAD: head.detach().to(dtype)}

    def outputs(self, weights: Weights, features: Tensor) -> Tensor:
        """z = phi W^T + b."""
        head = weights[HEAD]
        return torch.addmm(head[:, -1], features.to(head.dtype), head[:, :-1].T)

    def gradient(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> HeadGradient:
        """Loss and joint gradient, in closed form."""
        z = self.outputs(weights, features)  # (n, K)
        slope = task.residual(z, targets).div_(len(z))  # (n, K)
        gradient = torch.cat([slope.T @ features.to(z.dtype), slope.sum(dim=0)[:, None]], dim=1)  # (K, M + 1)
        return HeadGradient(task.loss(z, targets), {HEAD: gradient}, slope @ weights[HEAD][:, :-1])

    def descend(
        self, weights: Weights, features: Tensor, targets: Tensor, task: Task, steps: int, descent: Descent
    ) -> Weights:
        """W <- W - rate R^T Phi / n, or the move another rule makes of that gradient."""
        head = weights[HEAD].clone()
        if steps == 0:
            return {HEAD: head}
        phi = torch.cat([features.to(head.dtype), head.new_ones(len(features), 1)], dim=1)  # (n, M + 1)
        across, wanted = phi.T.contiguous(), targets.T.contiguous()  # (M + 1, n), (K, n)
        move = descent.start()
        for _ in range(steps):
            residual = task.residual(head @ across, wanted, dim=0)  # (K, n)
            pull = descent.pull({HEAD: head})[HEAD] if descent.decay else None
            if descent.rule == "gd":
                head.addmm_(residual, phi, alpha=-descent.rate / len(phi))
                if pull is not None:
                    head.sub_(pull, alpha=descent.rate)
            else:
                gradient = residual @ phi / len(phi)
                head.sub_(move({HEAD: gradient if pull is None else gradient + pull})[HEAD])
        return {HEAD: head}

    def smoothness(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> float:
        """c lambda_max(Phi^T Phi / n): the same at every head."""
        return head_smoothness(features.to(weights[HEAD].dtype), task)

    def module(self, weights: Weights) -> nn.Module:
        """The same head as an ordinary layer."""
        head = weights[HEAD]
        layer = nn.Linear(self.features, self.width, dtype=head.dtype, device="meta").to_empty(
            device=head.device
        )
        with torch.no_grad():
            layer.weight.copy_(head[:, :-1])
            layer.bias.copy_(head[:, -1])
        return layer
