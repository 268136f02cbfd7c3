"""Gradient steps in the span of a client's samples: a first dense layer without its large products.

A layer Z = X W' + b, with X (N, D) the same in every step, has the gradient G' X in W, where G = d loss / d Z.
Whatever a client's steps add to W is a sum of such products, and of a few tensors that are the same in every step: W_0
itself, which weight decay shrinks; an anchor V, which mu (W - V) pulls to; a slope S, which is added as it is. So

    W = A' X + sum_k c_k D_k,                     A (N, H), D_k among W_0, V, S,
    Z = X X' A + sum_k c_k X D_k' + b,

W_0, V and S have coordinates like any other W, and every term of a step is linear: a step that adds s G' X to W adds
s G to A, decay W is decay (A, c), and mu (W - V) is mu ((A, c) - those of V). A step costs one product with the Gram
matrix X X', (N, N), in place of a product with X in either direction: the same steps, up to rounding, for less where N
is below 2 D.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from pflego.learning.dense import hooked, layers_of, shares_weights
from pflego.learning.stateless import Stateless
from pflego.weights import Weights

if TYPE_CHECKING:
    from pflego.learning.problem import FeatureTerm, Problem

_ALONG = "along fixed directions"  # the name of c among the weights
_WayBack: TypeAlias = Callable[[Tensor], Weights]  # from d loss / d phi to that of all coordinates
_WORTH_IT = 0.75  # of the plain steps' multiplications: theirs are in larger products, at a higher speed


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
        layers = layers_of(backbone)
        while layers and isinstance(layers[0][1], nn.Flatten | nn.Identity):
            layers.pop(0)
        if not layers:
            return None
        (name, first), *others = layers
        if type(first) is not nn.Linear or hooked(backbone) or shares_weights(m for _, m in layers):
            return None
        rest = nn.Sequential(OrderedDict(others))
        names = frozenset(dict([*rest.named_parameters(), *rest.named_buffers()]))
        bias = None if first.bias is None else f"{name}.bias"
        return cls(f"{name}.weight", bias, first.in_features, first.out_features, Stateless(rest), names)

    def pays(self, samples: int, steps: int, directions: int = 1) -> bool:
        """Tell whether steps in the span take clearly fewer multiplications, Gram matrix and conversions included."""
        n, d, h = samples, self.inputs, self.outputs
        own = n * n * d + (directions + 1) * n * d * h + steps * n * n * h
        return own < _WORTH_IT * steps * 2 * n * d * h

    def numbers(self, samples: int, directions: int = 1) -> int:
        """Count the numbers that are held besides those of plain steps: X X', X D_k', A and its gradient."""
        return samples * samples + (directions + 2) * samples * self.outputs


class Span:
    """A client's problem, with the first layer's weight given by its coordinates A and c.

    Parameters
    ----------
    problem
        Whose samples span it.
    directions
        W_0 and, where there are such, V and S.
    moves
        Whether c does.
    """

    def __init__(self, problem: Problem, directions: Sequence[Tensor], *, moves: bool) -> None:
        (inputs,) = problem.inputs()
        opening = problem.model.opening
        assert opening is not None
        self._problem = problem
        self._opening = opening
        self._constants = {n: t for n, t in problem.model.constants.items() if n in opening.rest_names}
        self._x = inputs.flatten(1)
        self._directions = directions
        self._moves = moves
        self._gram = self._x @ self._x.T
        self._z = torch.stack([self._x @ direction.T for direction in directions])  # (k, N, H)
        self._bias = problem.model.constants.get(opening.bias or "")
        self._everyone = torch.arange(problem.samples)

    @classmethod
    def of(
        cls,
        problem: Problem,
        weights: Weights,
        *,
        steps: int,
        moving: Sequence[str],
        decays: bool = False,
        anchor: Weights | None = None,
        slope: Weights | None = None,
    ) -> Span | None:
        """Give a problem's span where it can be, and unless it is asked for anyway, where it is cheaper.

        That depends on shapes and settings alone, so that the same settings give the same result everywhere.
        """
        wanted, model = problem.streaming.speedup, problem.model
        opening = model.opening if wanted != "none" and not model.live else None
        if opening is None or opening.weight not in moving or model.dtype != model.weight_dtype:
            return None
        if problem.x[0].numel() != opening.inputs:  # the layer sees each sample in pieces
            return None
        directions = [weights[opening.weight]]
        for others in (anchor, slope):
            if others is not None and others.get(opening.weight, directions[0]) is not directions[0]:
                directions.append(others[opening.weight])
        if wanted == "auto" and not opening.pays(problem.samples, steps, len(directions)):
            return None
        if not problem.has_room(opening.numbers(problem.samples, len(directions))):
            return None
        return cls(problem, directions, moves=decays or len(directions) > 1)

    def enter(self, weights: Weights) -> Weights:
        """Give the coordinates of weights whose first layer's is one of the directions, or is not there."""
        if (own := weights.get(self._opening.weight)) is None:
            return weights
        coordinates = {**weights, self._opening.weight: torch.zeros_like(self._z[0])}
        if self._moves:
            coordinates[_ALONG] = self._z.new_tensor([float(own is one) for one in self._directions])
        return coordinates

    def leave(self, coordinates: Weights) -> Weights:
        """Give the weights that have these coordinates."""
        weights = {name: weight for name, weight in coordinates.items() if name != _ALONG}
        start = self._directions[0]
        if self._moves:
            start = torch.tensordot(coordinates[_ALONG], torch.stack(list(self._directions)), dims=1)
        weights[self._opening.weight] = torch.addmm(start, coordinates[self._opening.weight].T, self._x)
        return weights

    def gradient(self, coordinates: Weights, *, on_features: FeatureTerm | None = None) -> Weights:
        """Compute the joint gradient, G in the place of the first layer's: one forward and one backward pass."""
        problem, opening = self._problem, self._opening
        problem.passed.forward += problem.samples
        problem.passed.backward += problem.samples
        z = torch.tensordot(coordinates[_ALONG], self._z, dims=1) if self._moves else self._z[0]
        z = torch.addmm(z, self._gram, coordinates[opening.weight])
        bias = coordinates.get(opening.bias or "", self._bias)
        way = self._differentiated if problem.model.dense is None else self._in_closed_form
        features, way_back = way(coordinates, z, bias)
        at_head = problem.head_gradient(coordinates, features)
        gradient = way_back(problem.with_term(at_head.features, features, self._everyone, on_features))
        if self._moves:
            gradient[_ALONG] = torch.zeros_like(coordinates[_ALONG])
        return {**gradient, **at_head.head}

    def _in_closed_form(
        self, coordinates: Weights, z: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, _WayBack]:
        dense, model = self._problem.model.dense, self._problem.model
        assert dense is not None
        weights = {**model.constants, **coordinates}
        values = dense.onward(weights, z if bias is None else z.add_(bias))

        def way_back(slopes: Tensor) -> Weights:
            gradient, first = dense.inward(weights, values, slopes, model.names)
            return {**gradient, self._opening.weight: first}

        return values[-1], way_back

    def _differentiated(
        self, coordinates: Weights, z: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, _WayBack]:
        opening = self._opening
        others = [name for name in self._problem.model.names if name != opening.weight]
        theta = {name: coordinates[name].detach().requires_grad_() for name in others}
        with torch.enable_grad():
            z.requires_grad_()
            shifted = z.clone() if bias is None else z + theta.get(opening.bias or "", bias)
            rest = {name: tensor for name, tensor in theta.items() if name in opening.rest_names}
            features = opening.rest({**self._constants, **rest}, shifted)

        def way_back(slopes: Tensor) -> Weights:
            found = torch.autograd.grad(features, [z, *theta.values()], slopes, materialize_grads=True)
            return dict(zip([opening.weight, *others], found, strict=True))

        return features.detach(), way_back
