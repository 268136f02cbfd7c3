"""What one client can compute: losses and gradients on its own data, through the model and the task.

An algorithm sees a client's data only through this. Passes over the backbone are counted here, where they
are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pflego import theory
from pflego.errors import check_choice, check_positive
from pflego.evaluation import Score
from pflego.federation import Client, Federation
from pflego.heads import Descent, HeadGradient, HeadInit
from pflego.model import Model
from pflego.randomness import torch_generator
from pflego.task import Task
from pflego.weights import Weights

Memory: TypeAlias = Literal["keep", "recompute"]


@dataclass(frozen=True)
class Streaming:
    """How samples go through the backbone: all at once, or in slices of `batch_size` for the same result.

    memory="keep" holds every slice's activations until the backward pass: one forward and one backward pass a
    gradient. memory="recompute" holds one slice's only: a second forward pass instead.
    """

    batch_size: int | None = None
    memory: Memory = "keep"

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_positive("batch_size", self.batch_size, whole=True)
        check_choice("memory", self.memory, ["keep", "recompute"])


class Problem:
    """A client's loss l_i(W, theta), eq. (clientloss), and its gradients."""

    def __init__(
        self,
        client: Client,
        model: Model,
        task: Task,
        device: torch.device,
        *,
        federation_classes: Tensor | None = None,
        streaming: Streaming = Streaming(),  # noqa: B008 - immutable
    ) -> None:
        self.client = client
        self.model = model
        self.task = task
        self.device = device
        self.streaming = streaming
        self.samples = len(client.x_train)  # N_i
        self.classes = client.classes  # what its outputs stand for; none in regression
        self.outputs = len(self.classes) or client.y_train[:1].numel()  # K_i
        self.head = model.head(self.outputs)
        self.forward_passes = 0
        self.backward_passes = 0
        self._federation_classes = federation_classes

    @cached_property
    def rows(self) -> Tensor:
        """Where its outputs stand among those of the whole federation."""
        if self._federation_classes is None:
            return torch.arange(self.outputs, device=self.device)
        return torch.searchsorted(self._federation_classes, self.classes).to(self.device)

    @cached_property
    def targets(self) -> Tensor:
        """The training labels as the loss takes them."""
        return self._targets(self.client.y_train)

    def new_head(self, how: HeadInit, seed: int) -> Weights:
        """Give this client's first head, a function of the seed and its id."""
        generator = torch_generator(seed, "head", client=self.client.id)
        return self.head.init(how, generator, self.model.weight_dtype)

    def forward(self, weights: Weights) -> ForwardPass:
        """Pass all samples through the backbone once."""
        self.forward_passes += 1
        return ForwardPass(self, weights)

    def head_loss(self, weights: Weights, features: Tensor) -> float:
        """Compute the loss at a head, from features."""
        return float(self.task.loss(self.head.outputs(weights, features), self.targets))

    def head_gradient(self, weights: Weights, features: Tensor) -> HeadGradient:
        """Compute loss and gradients at a head, from features."""
        return self.head.gradient(weights, features, self.targets, self.task)

    def head_steps(self, weights: Weights, features: Tensor, steps: int, descent: Descent) -> Weights:
        """Take steps on the head alone, from features."""
        return self.head.descend(weights, features, self.targets, self.task, steps, descent)

    def head_smoothness(self, weights: Weights, features: Tensor) -> float:
        """L_i, the smoothness constant of the loss as a function of the head."""
        return self.head.smoothness(weights, features, self.targets, self.task)

    def backbone_smoothness(self, weights: Weights, iterations: int) -> float:
        """The smoothness constant of the loss as a function of theta, where it is: a pass each way an iteration."""
        theta = {name: weights[name] for name in self.model.names}
        self.forward_passes += iterations
        self.backward_passes += iterations
        x = self._inputs(slice(None))

        def loss(theta: Weights) -> Tensor:
            return self.task.loss(self.head.outputs(weights, self.model.phi(theta, x)), self.targets)

        return theory.smoothness(loss, theta, iterations)

    def gradient(self, weights: Weights) -> Weights:
        """Compute the joint gradient of backbone and head: one forward and one backward pass."""
        forward = self.forward(weights)
        at_head = self.head_gradient(weights, forward.features)
        return {**forward.backward(at_head.features), **at_head.head}

    @torch.no_grad()
    def loss(self, weights: Weights) -> float:
        """Look at the training loss. No part of a client's work, so the pass is not counted."""
        features = torch.cat([self.model.phi(weights, self._inputs(part)) for part in self._slices()])
        return self.head_loss(weights, features)

    @torch.no_grad()
    def test(self, weights: Weights) -> Score:
        """Look at the result on the test data. No part of a client's work, so the pass is not counted."""
        if len(self.client.x_test) == 0:
            return Score(0, None, 0.0)
        targets = self._targets(self.client.y_test)
        parts = torch.split(self.client.x_test, self.streaming.batch_size or len(targets))
        features = [self.model.phi(weights, self.model.prepare(part, self.device)) for part in parts]
        z = self.head.outputs(weights, torch.cat(features))
        loss = float(self.task.loss(z, targets)) if self.task.known(targets) else None
        return Score(len(z), loss, float(self.task.scores(z, targets).sum()))

    def _targets(self, y: Tensor) -> Tensor:
        return self.task.targets(y, self.classes, self.model.weight_dtype).to(self.device)

    def _slices(self) -> list[slice]:
        size = self.streaming.batch_size or self.samples
        return [slice(start, start + size) for start in range(0, self.samples, size)]

    def _inputs(self, part: slice) -> Tensor:
        return self.model.prepare(self.client.x_train[part], self.device)


@dataclass(frozen=True)
class Problems:
    """The problems of a federation's clients, made when they are asked for."""

    federation: Federation
    model: Model
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    streaming: Streaming = Streaming()

    def __getitem__(self, position: int) -> Problem:
        """Give the problem of the client at a position."""
        classes = self.federation.classes
        return Problem(
            self.federation[position],
            self.model,
            self.federation.task,
            self.device,
            federation_classes=None if classes is None else torch.tensor(classes),
            streaming=self.streaming,
        )


class ForwardPass:
    """A pass through the backbone, after which one backward pass can follow."""

    def __init__(self, problem: Problem, weights: Weights) -> None:
        self._problem = problem
        self._theta = {name: weights[name].detach().requires_grad_() for name in problem.model.names}
        self._parts = problem._slices()
        self._keep = problem.streaming.memory == "keep"
        self._outputs: list[Tensor] = []
        features = []
        with torch.set_grad_enabled(self._keep):
            for part in self._parts:
                output = self._run(part)
                features.append(output.detach())
                if self._keep:
                    self._outputs.append(output)
        self.features = features[0] if len(features) == 1 else torch.cat(features)  # (samples, M)

    def backward(self, features_gradient: Tensor) -> Weights:
        """Turn d loss / d phi into d loss / d theta. The activations are spent."""
        problem = self._problem
        problem.backward_passes += 1
        if not self._theta:
            return {}
        if not self._keep:
            problem.forward_passes += 1
        half = problem.model.dtype != problem.model.weight_dtype
        scale = (
            min(problem.samples, 1024) if half else 1
        )  # keeps small gradients above half precision's smallest
        total: list[Tensor] = []
        for number, part in enumerate(self._parts):
            output = self._outputs[number] if self._keep else self._run(part)
            slope = (features_gradient[part] * scale).to(output.dtype)
            gradients = torch.autograd.grad(output, list(self._theta.values()), slope, materialize_grads=True)
            total = [a + b for a, b in zip(total, gradients, strict=True)] if total else list(gradients)
        self._outputs.clear()
        return {name: gradient / scale for name, gradient in zip(self._theta, total, strict=True)}

    def _run(self, part: slice) -> Tensor:
        return self._problem.model.phi(self._theta, self._problem._inputs(part))
