"""A pass of samples through a backbone, and the way back: what costs a client most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from pflego.learning.memory import Kept
from pflego.weights import Weights, is_finite

if TYPE_CHECKING:
    from pflego.learning.problem import Problem


_Way: TypeAlias = Callable[[Tensor, bool], Weights]  # of d loss / d phi, and whether it is asked for again


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
        self._model = model = problems[0].model
        self._dense = model.dense if masks is None else None
        if self._dense is not None and problems[0].x[0].numel() != self._dense.inputs:
            self._dense = None  # its first layer sees each sample in pieces
        self._weights = {**model.constants, **weights}
        if self._dense is None:
            theta = {name: weights[name].detach().requires_grad_() for name in model.names}
            self._weights = {**{name: weights[name] for name in model.statistics}, **theta}
        self._kept = self._plan()
        self._ways: list[tuple[int, _Way]] = []  # back, for those samples whose activations are kept
        features = []
        self._count(forward=True)
        done = 0
        for inputs in self._slices():
            keep = done < self._kept.samples
            output, way = self._through(inputs, keep=keep)
            features.append(output)
            if keep:
                self._ways.append((len(inputs), way))
            done += len(inputs)
        self.features = features[0] if len(features) == 1 else torch.cat(features)  # (samples, M)

    def _through(self, inputs: Tensor, *, keep: bool = True) -> tuple[Tensor, _Way]:
        """Pass samples through the backbone; give their features, and the way back."""
        model, dense, weights = self._model, self._dense, self._weights
        if dense is not None:
            values = dense.forward(weights, inputs)
            return values[-1], lambda slope, _: dense.backward(weights, values, slope, model.names)
        with torch.set_grad_enabled(keep):
            if self._masks is None:
                output = model.phi(weights, inputs)
            else:
                output = model.phi_in_training(weights, inputs, self._masks)

        def differentiate(slope: Tensor, again: bool) -> Weights:
            parameters, slope = [weights[name] for name in model.names], slope.to(output.dtype)
            found = torch.autograd.grad(output, parameters, slope, retain_graph=again, materialize_grads=True)
            return {name: one.contiguous() for name, one in zip(model.names, found, strict=True)}

        return output.detach(), differentiate

    def backward(self, features_gradient: Tensor) -> Weights:
        """Turn d loss / d phi into d loss / d theta. The activations are spent."""
        if not self._model.names:
            self._count(backward=True)
            return {}
        scales, model = [1.0], self._model
        if model.dtype != model.weight_dtype:
            # half precision: lift small gradients above its smallest number, unless the large ones then overflow
            scales = [float(min(len(features_gradient), 1024)), 1.0]
        for scale in scales:
            slopes = features_gradient if scale == 1 else features_gradient * scale
            gradient = self._backward(slopes, again=scale != scales[-1])
            if len(scales) == 1 or is_finite(gradient):
                break
        self._ways.clear()
        return gradient if scale == 1 else {name: g / scale for name, g in gradient.items()}

    def _backward(self, slopes: Tensor, *, again: bool) -> Weights:
        self._count(backward=True)
        self._count(forward=True, beyond=self._kept.samples)
        recomputed = ((len(x), self._through(x)[1]) for x in self._slices(beyond=self._kept.samples))
        total: Weights = {}
        done = 0
        for place, (samples, way_back) in enumerate(chain(self._ways, recomputed)):
            gradient = way_back(slopes[done : done + samples], again)
            done += samples
            if place == 0:
                total = gradient
            elif place == 1:  # not in place: autograd may have given one tensor to two parameters
                summed = torch._foreach_add(list(total.values()), list(gradient.values()))
                total = dict(zip(total, summed, strict=True))
            else:
                torch._foreach_add_(list(total.values()), list(gradient.values()))
        return total

    def _plan(self) -> Kept:
        """Say how many samples go through at a time, and of how many the activations are kept: of a part all."""
        if self._part is not None:
            return Kept(None, len(self._part))
        if self._masks is not None:
            return Kept(None, self._problems[0].samples)
        first = self._problems[0]
        if len(self._problems) == 1:
            return first.kept
        return first.plan(sum(problem.samples for problem in self._problems))

    def _slices(self, *, beyond: int = 0) -> Iterator[Tensor]:
        """Prepare the samples in slices, but for the first of them."""
        if self._part is not None:
            return iter([] if beyond else [self._part])
        if self._masks is not None:
            [problem] = self._problems
            return iter([] if beyond else [problem.model.prepare(problem.x, problem.device)])
        if not beyond and len(self._problems) == 1:
            return iter(self._problems[0].inputs())
        if beyond >= sum(problem.samples for problem in self._problems):
            return iter([])
        xs = [problem.x for problem in self._problems]
        x = torch.cat(xs) if len(xs) > 1 else xs[0]
        return self._problems[0].in_slices(x[beyond:], self._kept.size)

    def _count(self, *, forward: bool = False, backward: bool = False, beyond: int = 0) -> None:
        """Count the samples that go through, but for the first of them."""
        for problem in self._problems if self._part is None else []:
            samples = max(0, problem.samples - beyond)
            problem.passed.forward += forward * samples
            problem.passed.backward += backward * samples
            beyond = max(0, beyond - problem.samples)
