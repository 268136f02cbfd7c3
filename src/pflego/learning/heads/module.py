"""Any module as a head, by automatic differentiation on cached features."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from pflego.errors import ModelError
from pflego.learning.heads.base import HEAD, HeadGradient, HeadInit
from pflego.learning.heads.bound import HessianBound
from pflego.learning.heads.rules import Descent
from pflego.learning.stateless import Stateless
from pflego.learning.task import Task
from pflego.learning.theory import smoothness
from pflego.randomness import seeded
from pflego.weights import Weights, weighted_sum

_PREFIX = f"{HEAD}."


@dataclass(frozen=True)
class ModuleHead:
    """A module from M features to K outputs. Its parameters are kept in a client's state as head.<name>.

    Its layers draw their own first weights; what no layer draws starts alike on every client.
    """

    smooth_everywhere: ClassVar[bool] = False

    template: nn.Module
    _function: Stateless = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_function", Stateless(self.template))
        if any(isinstance(m, _DropoutNd) and m.p > 0 and m.training for m in self.template.modules()):
            raise ModelError("a head must not draw at random: take its dropout out, or call .eval() on it")
        if any(True for _ in self.template.buffers()):
            raise ModelError(
                "a head must not have buffers (batch norm?): use LayerNorm, or put it into the backbone"
            )

    def init(self, how: HeadInit, generator: torch.Generator, dtype: torch.dtype) -> Weights:
        """Let every layer draw its own first weights, from the generator's seed."""
        if callable(how) or how in ("uniform", "centred"):
            raise ModelError(
                "head_init is for linear heads: the layers of a module draw their own first weights"
            )
        module = copy.deepcopy(self.template)
        with seeded(generator.initial_seed()):
            for layer in module.modules():
                if callable(reset := getattr(layer, "reset_parameters", None)):
                    reset()
        return {_PREFIX + name: p.detach().to(dtype) for name, p in module.named_parameters()}

    def outputs(self, weights: Weights, features: Tensor) -> Tensor:
        """Compute the module's outputs with these weights."""
        own = {name.removeprefix(_PREFIX): w for name, w in _own(weights).items()}
        return self._function(own, features.to(_dtype(own, features)))

    def gradient(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> HeadGradient:
        """Compute loss and joint gradient, by automatic differentiation."""
        head = {name: w.detach().requires_grad_() for name, w in _own(weights).items()}
        features = features.detach().to(_dtype(head, features)).requires_grad_()
        loss = task.loss(self.outputs(head, features), targets)
        *gradients, at_features = torch.autograd.grad(
            loss, [*head.values(), features], materialize_grads=True
        )
        return HeadGradient(loss.detach(), dict(zip(head, gradients, strict=True)), at_features)

    def loss(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> float:
        """Compute the loss at this head."""
        with torch.no_grad():
            return float(task.loss(self.outputs(weights, features), targets))

    def descend(
        self, weights: Weights, features: Tensor, targets: Tensor, task: Task, steps: int, descent: Descent
    ) -> Weights:
        """Take steps of the rule along the gradient of the head alone."""
        head = _own(weights)
        move = descent.start()
        for _ in range(steps):
            gradient = self.gradient(head, features, targets, task).head
            if descent.decay:
                gradient = weighted_sum([(1, gradient), (1, descent.pull(head))])
            moves = move(gradient)
            head = {name: w - moves[name] for name, w in head.items()}
        return head

    def smoothness(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> float:
        """Compute the largest curvature at this head."""
        return smoothness([lambda head: task.loss(self.outputs(head, features), targets)], _own(weights))

    def hessian_bound(self, weights: Weights, features: Tensor, targets: Tensor, task: Task) -> HessianBound:
        """Give the largest curvature at this head: no mean of features is apart in a module."""
        return HessianBound(self.smoothness(weights, features, targets, task))

    def module(self, weights: Weights) -> nn.Module:
        """Return a copy of the module with these weights."""
        module = copy.deepcopy(self.template)
        own = {name.removeprefix(_PREFIX): w.detach().clone() for name, w in _own(weights).items()}
        module.load_state_dict(own, assign=True)
        return module


def _own(weights: Weights) -> Weights:
    return {name: w for name, w in weights.items() if name.startswith(_PREFIX)}


def _dtype(own: Weights, features: Tensor) -> torch.dtype:
    """Return the type the head computes in: that of its weights, if it has any."""
    return next(iter(own.values()), features).dtype
