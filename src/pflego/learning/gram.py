"""Gradient steps in the span of a client's samples: a first dense layer without its large products.

A layer Z = X W' + b, with X (N, D) the same in every step, has the gradient G' X in W, where G = d loss / d Z.
Whatever a client's steps add to W is a sum of such products, so

    W = W_0 + A' X,          A (N, H),
    Z = X W_0' + X X' A + b,

and a step that adds s G' X to W adds s G to A. It costs one product with the Gram matrix X X', (N, N), in place of a
product with X in either direction: the same steps, up to rounding, for less where N is below 2 D. A term
mu (W - V) of the gradient pulls W towards an anchor V outside the span; with a second coordinate c,

    W = W_0 + A' X + c (V - W_0),

it is mu A and mu (c - 1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from pflego.learning.stateless import Stateless
from pflego.weights import Weights

if TYPE_CHECKING:
    from pflego.learning.problem import Problem

_PULL = "towards the anchor"  # the name of c among the weights


@dataclass(frozen=True)
class Opening:
    """The dense layer that a backbone's inputs meet first, and what follows it."""

    weight: str  # names among the backbone's parameters
    bias: str | None
    inputs: int  # D
    outputs: int  # H
    rest: Stateless
    rest_names: frozenset[str]  # of all its parameters and buffers

    @classmethod
    def of(cls, backbone: nn.Module) -> Opening | None:
        """Look for it; None where something else comes first."""
        layers = list(backbone.named_children()) if type(backbone) is nn.Sequential else []
        while layers and isinstance(layers[0][1], nn.Flatten | nn.Identity):
            layers.pop(0)
        if not layers:
            return None
        (name, first), *others = layers
        if type(first) is not nn.Linear:
            return None
        rest = nn.Sequential(OrderedDict(others))
        names = frozenset(dict([*rest.named_parameters(), *rest.named_buffers()]))
        bias = None if first.bias is None else f"{name}.bias"
        return cls(f"{name}.weight", bias, first.in_features, first.out_features, Stateless(rest), names)

    def pays(self, samples: int, steps: int) -> bool:
        """Tell whether steps in the span take fewer multiplications, Gram matrix and conversions included."""
        n, d, h = samples, self.inputs, self.outputs
        return n * n * d + 2 * n * d * h + steps * n * n * h < steps * 2 * n * d * h


class Span:
    """A client's problem, with the first layer's weight given by its coordinates A and c."""

    def __init__(self, problem: Problem, weights: Weights, anchor: Weights | None) -> None:
        (inputs,) = problem.inputs()
        opening = problem.model.opening
        assert opening is not None
        self._problem = problem
        self._opening = opening
        self._constants = {n: t for n, t in problem.model.constants.items() if n in opening.rest_names}
        self._x = inputs.flatten(1)
        self._start = weights[opening.weight]  # W_0
        self._pull = None if anchor is None else anchor[opening.weight] - self._start  # V - W_0
        self._gram = self._x @ self._x.T
        self._z = self._x @ self._start.T
        self._z_pull = None if self._pull is None else self._x @ self._pull.T
        if opening.bias in problem.model.constants:
            self._z += problem.model.constants[opening.bias]

    @classmethod
    def of(
        cls,
        problem: Problem,
        weights: Weights,
        *,
        steps: int,
        moving: Sequence[str],
        anchor: Weights | None,
    ) -> Span | None:
        """Give a problem's span where that is asked for, possible and cheaper."""
        asked = problem.streaming.speedup == "gram" and not problem.model.live
        opening = problem.model.opening if asked else None
        whole = problem.slice is None or problem.slice >= problem.samples
        if opening is None or not whole or opening.weight not in moving:
            return None
        if problem.client.x_train[0].numel() != opening.inputs:  # the layer sees each sample in pieces
            return None
        first = weights[opening.weight]
        if problem.model.dtype != problem.model.weight_dtype or not opening.pays(problem.samples, steps):
            return None
        elsewhere = anchor is not None and anchor.get(opening.weight, first) is not first
        return cls(problem, weights, anchor if elsewhere else None)

    def enter(self, weights: Weights) -> Weights:
        """Give these weights' coordinates: those of W_0, unless they are the anchor's, which may be without any."""
        if self._opening.weight not in weights:
            return weights
        at_anchor = weights[self._opening.weight] is not self._start
        coordinates = {**weights, self._opening.weight: torch.zeros_like(self._z)}
        if self._pull is not None:
            coordinates[_PULL] = self._z.new_tensor(float(at_anchor))
        return coordinates

    def leave(self, coordinates: Weights) -> Weights:
        """Give the weights that have these coordinates."""
        weight = torch.addmm(self._start, coordinates[self._opening.weight].T, self._x)
        if self._pull is not None:
            weight += coordinates[_PULL] * self._pull
        return {**{n: w for n, w in coordinates.items() if n != _PULL}, self._opening.weight: weight}

    def gradient(self, coordinates: Weights) -> Weights:
        """Compute the joint gradient, G in the place of the first layer's: one forward and one backward pass."""
        problem, opening = self._problem, self._opening
        problem.passed.forward += problem.samples
        problem.passed.backward += problem.samples
        z = torch.addmm(self._z, self._gram, coordinates[opening.weight])
        if self._z_pull is not None:
            z += coordinates[_PULL] * self._z_pull
        others = [name for name in problem.model.names if name != opening.weight]
        theta = {name: coordinates[name].detach().requires_grad_() for name in others}
        with torch.enable_grad():
            z.requires_grad_()
            shifted = z + theta[opening.bias] if opening.bias in theta else z.clone()
            rest = {name: tensor for name, tensor in theta.items() if name in opening.rest_names}
            features = opening.rest({**self._constants, **rest}, shifted)
        at_head = problem.head_gradient(coordinates, features.detach())
        slopes = torch.autograd.grad(features, [z, *theta.values()], at_head.features, materialize_grads=True)
        gradient = dict(zip([opening.weight, *others], slopes, strict=True))
        if self._z_pull is not None:
            gradient[_PULL] = torch.zeros_like(coordinates[_PULL])
        return {**gradient, **at_head.head}
