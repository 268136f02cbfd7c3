"""A pass of samples through a backbone, and the way back: what costs a client most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pflego.weights import Weights, is_finite

if TYPE_CHECKING:
    from pflego.learning.problem import Problem


class ForwardPass:
    """A pass of one client's samples through the backbone, or of several clients' together.

    One backward pass can follow it. A pass of a part of one client's samples, prepared inputs, is not counted. With
    `masks` it is one in training mode, of all samples in one piece.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        weights: Weights,
        *,
        part: Tensor | None = None,
        masks: torch.Generator | None = None,
    ) -> None:
        self._problems = problems
        self._part = part
        self._masks = masks
        model = problems[0].model
        self._theta = {name: weights[name].detach().requires_grad_() for name in model.names}
        self._weights = {**{name: weights[name] for name in model.statistics}, **self._theta}
        keeps = problems[0].streaming.memory != "recompute"
        self._keep = keeps or part is not None or masks is not None
        self._outputs: list[Tensor] = []
        features = []
        self._count(forward=1)
        with torch.set_grad_enabled(self._keep):
            for inputs in self._slices():
                if masks is None:
                    output = model.phi(self._weights, inputs)
                else:
                    output = model.phi_in_training(self._weights, inputs, masks)
                features.append(output.detach())
                if self._keep:
                    self._outputs.append(output)
        self.features = features[0] if len(features) == 1 else torch.cat(features)  # (samples, M)

    def backward(self, features_gradient: Tensor) -> Weights:
        """Turn d loss / d phi into d loss / d theta. The activations are spent."""
        if not self._theta:
            self._count(backward=1)
            return {}
        scales = [1.0]
        model = self._problems[0].model
        if model.dtype != model.weight_dtype:
            # half precision: lift small gradients above its smallest number, unless the large ones then overflow
            scales = [float(min(len(features_gradient), 1024)), 1.0]
        for scale in scales:
            slopes = features_gradient if scale == 1 else features_gradient * scale
            gradient = self._backward(slopes, keep=scale != scales[-1])
            if len(scales) == 1 or is_finite(gradient):
                break
        self._outputs.clear()
        return gradient if scale == 1 else {name: g / scale for name, g in gradient.items()}

    def _backward(self, slopes: Tensor, *, keep: bool) -> Weights:
        self._count(backward=1, forward=0 if self._keep else 1)
        parameters = list(self._theta.values())
        model = self._problems[0].model
        outputs = self._outputs if self._keep else (model.phi(self._weights, x) for x in self._slices())
        total: list[Tensor] = []
        done = 0
        for place, output in enumerate(outputs):
            slope = slopes[done : done + len(output)].to(output.dtype)
            done += len(output)
            gradients = torch.autograd.grad(
                output, parameters, slope, retain_graph=keep, materialize_grads=True
            )
            if place == 0:
                total = [gradient.contiguous() for gradient in gradients]
            elif place == 1:  # not in place: autograd may have given one tensor to two parameters
                total = list(torch._foreach_add(total, gradients))
            else:
                torch._foreach_add_(total, gradients)
        return dict(zip(self._theta, total, strict=True))

    def _slices(self) -> Iterator[Tensor]:
        if self._part is not None:
            return iter([self._part])
        if self._masks is not None:
            [problem] = self._problems
            return iter([problem.model.prepare(problem.x, problem.device)])
        if len(self._problems) == 1:
            return iter(self._problems[0].inputs())
        return self._problems[0].in_slices(torch.cat([problem.x for problem in self._problems]))

    def _count(self, *, forward: int = 0, backward: int = 0) -> None:
        for problem in self._problems if self._part is None else []:
            problem.passed.forward += forward * problem.samples
            problem.passed.backward += backward * problem.samples
