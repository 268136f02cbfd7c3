"""The linear head, in closed form: the hot loop.

A head is one tensor W, (K, M + 1), the bias in its last column, kept in a client's state as "head". On features
Phi, (n, M + 1) with a last column of ones, targets t and residuals R = link(z) - t, both (n, K):

    z = Phi W^T        d loss / d W = R^T Phi / n        d loss / d phi = R W[:, :M] / n

so a step on the head costs two small products and no automatic differentiation. The loop works on the transposes,
(K, n) and (M + 1, n): short and wide, they go through memory in order. Where numba is installed and the loop is one
that it knows (heads/kernel.py), it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pflego.errors import ModelError, calling, named
from pflego.learning.heads.base import HEAD, HeadGradient, HeadInit
from pflego.learning.heads.bound import HessianBound, bound_of_features, centred_bound
from pflego.learning.heads.rules import Descent
from pflego.learning.task import Classification, Task
from pflego.learning.theory import ITERATIONS, first_vector, head_smoothness
from pflego.learning.weighted import weights_in
from pflego.weights import Weights

_plain = ContextVar("plain", default=False)


@contextmanager
def plain_loops() -> Iterator[None]:
    """Take every step by torch's own operations in this context, as where numba is not installed."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


@dataclass(frozen=True)
class LinearHead:
    """One linear layer with a bias."""

    smooth_everywhere: ClassVar[bool] = True

    features: int  # M
    width: int  # K

    def init(self, how: HeadInit, generator: torch.Generator, dtype: torch.dtype) -> Weights:
        """Draw a first head.

        "zeros"; "uniform", the paper's U[0, 1); "centred", that less its mean over the outputs, which is the same to a
        softmax and nothing where there is one output; "layer", as nn.Linear starts; "orthonormal" rows, U V^T of a
        random matrix; or what a function gives.
        """
        rows, columns = self.width, self.features + 1
        if callable(how):
            with calling(f"head_init {named(how)}({rows}, {columns}, generator) failed", ModelError):
                head = torch.as_tensor(how(rows, columns, generator))
            if head.shape != (rows, columns):
                raise ModelError(f"head_init gave shape {tuple(head.shape)}, asked for ({rows}, {columns})")
        elif how == "zeros":
            head = torch.zeros(rows, columns)
        elif how in ("uniform", "centred"):
            drawn = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
            head = drawn if how == "uniform" else drawn - drawn.mean(dim=0)
        elif how == "layer":
            drawn = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
            head = (2 * drawn - 1) / self.features**0.5
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
        """Compute loss and joint gradient, in closed form."""
        head = weights[HEAD]
        if kernel := compiled_loops(head, task):
            gradient = torch.empty(head.shape)
            at_features = torch.empty(features.shape)
            loss = kernel.softmax_gradient(
                *_arrays(head, _like(features, head), targets, at_features, gradient)
            )
            return HeadGradient(loss, {HEAD: gradient}, at_features)
        z = self.outputs(weights, features)  # (n, K)
        slope = task.residual(z, targets).div_(len(z))  # (n, K)
        gradient = torch.cat([slope.T @ features.to(z.dtype), slope.sum(dim=0)[:, None]], dim=1)  # (K, M + 1)
        return HeadGradient(task.loss(z, targets), {HEAD: gradient}, slope @ head[:, :-1])

    def loss(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> float:
        """Compute the loss at this head."""
        head = weights[HEAD]
        if kernel := compiled_loops(head, task):
            return float(kernel.softmax_loss(*_arrays(head, _like(features, head), targets)))
        return float(task.loss(self.outputs(weights, features), targets))

    def descend(
        self, weights: Weights, features: Tensor, targets: Tensor, task: Task, steps: int, descent: Descent
    ) -> Weights:
        """W <- W - rate R^T Phi / n, or the move another rule makes of that gradient."""
        head = weights[HEAD].clone(memory_format=torch.contiguous_format)
        if steps == 0:
            return {HEAD: head}
        if descent.rule == "gd" and (kernel := compiled_loops(head, task)):
            anchor = head  # without decay there is no pull
            if descent.decay:
                anchor = (descent.anchor or {}).get(HEAD, torch.zeros_like(head))
            mean = head[0] if descent.mean is None else descent.mean  # without a share it is not looked at
            arrays = _arrays(head, _like(features, head), targets, anchor, mean)
            kernel.softmax_steps(*arrays, steps, descent.rate, descent.decay, descent.share)
            return {HEAD: head}
        phi = torch.cat([features.to(head.dtype), head.new_ones(len(features), 1)], dim=1)  # (n, M + 1)
        across, wanted = phi.T.contiguous(), targets.T.contiguous()  # (M + 1, n), (K, n)
        move = descent.start()
        for _ in range(steps):
            residual = task.residual(head @ across, wanted, dim=0)  # (K, n)
            pull = descent.pull({HEAD: head})[HEAD] if descent.decay else None
            if descent.rule == "gd" and descent.mean is None:
                head = torch.addmm(head, residual, phi, alpha=-descent.rate / len(phi))
                if pull is not None:
                    head.sub_(pull, alpha=descent.rate)
            else:
                gradient = residual @ phi / len(phi)
                head.sub_(move({HEAD: gradient if pull is None else gradient + pull})[HEAD])
        return {HEAD: head}

    def smoothness(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> float:
        """c lambda_max(Phi^T Phi / n), or with weights of the samples between the two: the same at every head."""
        features = _like(features, weights[HEAD])
        each = weights_in(task, targets)
        if each is None and (kernel := compiled_loops(features)):
            arrays = _arrays(features, torch.zeros(self.features + 1), first_vector(self.features + 1)[None])
            return task.curvature * float(kernel.largest_eigenvalue(*arrays, ITERATIONS))
        return head_smoothness(features, task, each)

    def hessian_bound(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> HessianBound:
        """a I + c m m^T: the same at every head."""
        features = _like(features, weights[HEAD])
        each = weights_in(task, targets)
        if each is None and (kernel := compiled_loops(features)):
            mean = torch.empty(self.features + 1)
            arrays = list(_arrays(features, mean, first_vector(self.features + 1)[None]))
            kernel.mean_row(*arrays[:2])
            constant = task.curvature * float(kernel.largest_eigenvalue(*arrays, ITERATIONS))
            return centred_bound(mean, constant, task.curvature)
        return bound_of_features(features, task, each)

    def module(self, weights: Weights) -> nn.Module:
        """Return the same head as an ordinary layer."""
        head = weights[HEAD]
        layer = nn.Linear(self.features, self.width, dtype=head.dtype, device="meta").to_empty(
            device=head.device
        )
        with torch.no_grad():
            layer.weight.copy_(head[:, :-1])
            layer.bias.copy_(head[:, -1])
        return layer


def compiled_loops(numbers: Tensor, task: Task = Classification()) -> ModuleType | None:
    """Return the compiled loops, if they are there and made for such numbers and such a task."""
    fits = numbers.dtype == torch.float32 and numbers.is_cpu
    return _load_kernel() if fits and isinstance(task, Classification) and not _plain.get() else None


def _like(features: Tensor, head: Tensor) -> Tensor:
    """Cast features to the head's own type, which they mostly have."""
    return features if features.dtype == head.dtype else features.to(head.dtype)


def _arrays(*tensors: Tensor) -> Iterator[npt.NDArray[np.float32]]:
    """Give tensors as arrays to the compiled loops: not copied, unless they are not contiguous."""
    return (tensor.contiguous().numpy() for tensor in tensors)


@cache
def _load_kernel() -> ModuleType | None:
    try:
        from pflego.learning.heads import kernel
    except ImportError:
        return None
    return kernel
