"""What one client can compute: losses and gradients on its own data, through the model and the task.

An algorithm sees a client's data only through this. Passes over the backbone are counted here, where they
are made.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from pflego.evaluation import Score
from pflego.federation import Client
from pflego.heads import HeadGradient, HeadInit
from pflego.model import Model
from pflego.randomness import torch_generator
from pflego.task import Task
from pflego.weights import Weights


class Problem:
    """A client's loss l_i(W, theta), eq. (clientloss), and its gradients."""

    def __init__(self, client: Client, model: Model, task: Task, device: torch.device) -> None:
        self.client = client
        self.model = model
        self.task = task
        self.device = device
        self.samples = len(client.x_train)  # N_i
        self.forward_passes = 0
        self.backward_passes = 0

    @cached_property
    def classes(self) -> Tensor:
        """The classes its outputs stand for; none in regression."""
        return self.client.classes

    @property
    def outputs(self) -> int:
        """K_i."""
        return len(self.classes) or self.client.y_train[:1].numel()

    @cached_property
    def x(self) -> Tensor:
        """The training inputs as the backbone takes them."""
        return self.model.prepare(self.client.x_train, self.device)

    @cached_property
    def targets(self) -> Tensor:
        """The training labels as the loss takes them."""
        return self._targets(self.client.y_train)

    def new_head(self, how: HeadInit, seed: int) -> Weights:
        """Give this client's first head, a function of the seed and its id."""
        generator = torch_generator(seed, "head", client=self.client.id)
        return self.model.head.init(self.outputs, how, generator, self.model.dtype)

    def forward(self, weights: Weights) -> ForwardPass:
        """Pass all samples through the backbone once."""
        self.forward_passes += 1
        return ForwardPass(self, weights)

    def head_loss(self, weights: Weights, features: Tensor) -> float:
        """Compute the loss at a head, from features."""
        return float(self.model.head.loss(weights, features, self.targets, self.task))

    def head_gradient(self, weights: Weights, features: Tensor) -> HeadGradient:
        """Compute loss and gradients at a head, from features."""
        return self.model.head.gradient(weights, features, self.targets, self.task)

    def head_steps(self, weights: Weights, features: Tensor, *, steps: int, rate: float) -> Weights:
        """Take gradient steps on the head alone, from features."""
        return self.model.head.descend(weights, features, self.targets, self.task, steps=steps, rate=rate)

    def gradient(self, weights: Weights) -> Weights:
        """Compute the joint gradient of backbone and head: one forward and one backward pass."""
        forward = self.forward(weights)
        at_head = self.head_gradient(weights, forward.features)
        return {**forward.backward(at_head.features), **at_head.head}

    @torch.no_grad()
    def loss(self, weights: Weights) -> float:
        """Look at the training loss. No part of a client's work, so the pass is not counted."""
        return float(self.task.loss(self.model.outputs(weights, self.x), self.targets))

    @torch.no_grad()
    def test(self, weights: Weights) -> Score:
        """Look at the result on the test data. No part of a client's work, so the pass is not counted."""
        if len(self.client.x_test) == 0:
            return Score(0, None, 0.0)
        targets = self._targets(self.client.y_test)
        z = self.model.outputs(weights, self.model.prepare(self.client.x_test, self.device))
        loss = float(self.task.loss(z, targets)) if self.task.known(targets) else None
        return Score(len(z), loss, float(self.task.scores(z, targets).sum()))

    def _targets(self, y: Tensor) -> Tensor:
        return self.task.targets(y, self.classes, self.model.dtype).to(self.device)


class ForwardPass:
    """A pass through the backbone whose graph is kept, so that one backward pass can follow."""

    def __init__(self, problem: Problem, weights: Weights) -> None:
        self._problem = problem
        self._theta = {name: weights[name].detach().requires_grad_() for name in problem.model.names}
        self._output = problem.model.phi(self._theta, problem.x)
        self.features = self._output.detach()  # (samples, M)

    def backward(self, features_gradient: Tensor) -> Weights:
        """Turn d loss / d phi into d loss / d theta. The graph is spent."""
        self._problem.backward_passes += 1
        if not self._theta:
            return {}
        gradients = torch.autograd.grad(
            self._output, list(self._theta.values()), features_gradient, materialize_grads=True
        )
        return dict(zip(self._theta, gradients, strict=True))
