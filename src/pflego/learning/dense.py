"""Dense networks in closed form: the way through one and back without automatic differentiation.

    Z_l = A_{l-1} W_l' + b_l,        A_l = s_l(Z_l),        A_0 = X
    G_l = d loss / d Z_l = d loss / d A_l * s_l'(Z_l),      d loss / d A_{l-1} = G_l W_l
    d loss / d W_l = G_l' A_{l-1},                          d loss / d b_l = sum of G_l's rows

With a batch of 32 samples the products of a step take as long as everything around them: building a graph, walking it
back, holding weights for a call. Here a layer is three calls each way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pflego.weights import Weights


@dataclass(frozen=True)
class Activation:
    """A function of each number by itself, whose slope can be told from its value."""

    forward: Callable[[Tensor], Tensor]  # writes over its argument
    backward: Callable[[Tensor, Tensor], Tensor]  # of the gradient and the value


_aten = torch.ops.aten
ACTIVATIONS: Mapping[type[nn.Module], Activation] = {
    nn.Identity: Activation(lambda z: z, lambda slope, value: slope),
    nn.ReLU: Activation(torch.relu_, lambda slope, value: _aten.threshold_backward(slope, value, 0)),
    nn.Tanh: Activation(torch.tanh_, _aten.tanh_backward),
    nn.Sigmoid: Activation(torch.sigmoid_, _aten.sigmoid_backward),
}


@dataclass(frozen=True)
class Layer:
    """A dense layer and what follows it."""

    weight: str  # names among the backbone's parameters
    bias: str | None
    activation: Activation


@dataclass(frozen=True)
class Dense:
    """A backbone of dense layers alone."""

    layers: tuple[Layer, ...]
    inputs: int

    @classmethod
    def of(cls, backbone: nn.Module) -> Dense | None:
        """Read it; None where it has any other layer, or one that somebody has hooked into."""
        given = layers_of(backbone)
        if hooked(backbone) or shares_weights(module for _, module in given):
            return None
        while given and _flattens(given[0][1]):
            given.pop(0)
        inputs = given[0][1].in_features if given and type(given[0][1]) is nn.Linear else 0
        layers: list[Layer] = []
        while given:
            name, linear = given.pop(0)
            if type(linear) is not nn.Linear:
                return None
            activation = ACTIVATIONS[nn.Identity]
            if given and type(given[0][1]) in ACTIVATIONS:
                activation = ACTIVATIONS[type(given.pop(0)[1])]
            bias = None if linear.bias is None else f"{name}.bias"
            layers.append(Layer(f"{name}.weight", bias, activation))
        return cls(tuple(layers), inputs) if layers else None

    def forward(self, weights: Weights, x: Tensor) -> list[Tensor]:
        """Give A_0 to A_L: inputs, (n, D), what every layer made of them, and last the features, (n, M)."""
        flat = x.flatten(1)
        return [flat, *self.onward(weights, _affine(weights, self.layers[0], flat))]

    def onward(self, weights: Weights, z: Tensor) -> list[Tensor]:
        """Give A_1 to A_L from Z_1, which is written over."""
        values = [self.layers[0].activation.forward(z)]
        for layer in self.layers[1:]:
            values.append(layer.activation.forward(_affine(weights, layer, values[-1])))
        return values

    def backward(
        self, weights: Weights, values: Sequence[Tensor], slopes: Tensor, wanted: Sequence[str]
    ) -> Weights:
        """Turn d loss / d A_L into d loss / d theta, for the parameters that are wanted; `values` are A_0 to A_L."""
        gradient, slope = self.inward(weights, values[1:], slopes, wanted)
        if (first := self.layers[0].weight) in wanted:
            gradient[first] = slope.T @ values[0]
        return {name: gradient[name] for name in wanted}

    def inward(
        self, weights: Weights, values: Sequence[Tensor], slopes: Tensor, wanted: Sequence[str]
    ) -> tuple[Weights, Tensor]:
        """Turn d loss / d A_L into that of all parameters but the first layer's weight, and of Z_1.

        `values` are A_1 to A_L.
        """
        gradient: Weights = {}
        slope = slopes
        for place in reversed(range(len(self.layers))):
            layer = self.layers[place]
            slope = layer.activation.backward(slope, values[place])
            if layer.bias is not None and layer.bias in wanted:
                gradient[layer.bias] = slope.sum(dim=0)
            if place:
                if layer.weight in wanted:
                    gradient[layer.weight] = slope.T @ values[place - 1]
                slope = slope @ weights[layer.weight]
        return gradient, slope


def _affine(weights: Weights, layer: Layer, value: Tensor) -> Tensor:
    across = weights[layer.weight].T
    return value @ across if layer.bias is None else torch.addmm(weights[layer.bias], value, across)


def layers_of(backbone: nn.Module) -> list[tuple[str, nn.Module]]:
    """List a sequence's layers by name, those that stand in it twice too; none of anything else."""
    return list(backbone._modules.items()) if type(backbone) is nn.Sequential else []


def shares_weights(layers: Iterable[nn.Module]) -> bool:
    """Tell whether some layers have a parameter in common."""
    tensors = [id(parameter) for layer in layers for parameter in layer.parameters()]
    return len(set(tensors)) < len(tensors)


def hooked(backbone: nn.Module) -> bool:
    """Tell whether calling a module, or one in it, does more than its forward pass."""
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in backbone.modules())


def _flattens(module: nn.Module) -> bool:
    whole = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
    return whole or type(module) is nn.Identity
