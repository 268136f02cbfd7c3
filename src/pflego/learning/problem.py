"""What one client can compute: losses and gradients on its own data, through the model and the task.

An algorithm sees a client's data only through this: all samples, or some of them. What goes through the backbone is
counted here, where it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice, repeat
from math import isinf
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from pflego.federation.roster import Client
from pflego.learning import theory
from pflego.learning.evaluation import Score
from pflego.learning.forward import ForwardPass
from pflego.learning.heads import Descent, HeadGradient, HeadInit, HessianBound, LinearHead
from pflego.learning.memory import Kept
from pflego.learning.model import Model
from pflego.learning.scoring import score_of
from pflego.learning.scoring import scores_together as scores_together
from pflego.learning.streaming import Labels as Labels
from pflego.learning.streaming import LabelSpace as LabelSpace
from pflego.learning.streaming import Speedup as Speedup
from pflego.learning.streaming import Streaming as Streaming
from pflego.learning.streaming import TrunkPasses as TrunkPasses
from pflego.learning.task import Task
from pflego.learning.trunk import BeyondTrunk
from pflego.learning.weighted import weights_in, with_weights
from pflego.randomness import torch_generator
from pflego.weights import Weights, weighted_sum

FeatureTerm: TypeAlias = Callable[
    [Tensor, Tensor], Tensor
]  # of features, (n, M), and whose they are: positions

_PROBE = 8  # samples on which the bytes of activations are measured


@dataclass
class Passed:
    """How many samples have gone through the backbone, either way."""

    forward: int = 0
    backward: int = 0


class Problem:
    """A client's loss l_i(W, theta), eq. (clientloss), and its gradients. Test results count every sample alike."""

    def __init__(
        self,
        client: Client,
        model: Model,
        task: Task,
        device: torch.device,
        *,
        space: LabelSpace = LabelSpace(),
        streaming: Streaming = Streaming(),
    ) -> None:
        self.client = client
        self.model = model
        self.task = task
        self.device = device
        self.streaming = streaming
        self.samples = client.y_train.shape[0]  # N_i
        # what its first outputs stand for, none in regression, and how many outputs there are
        self.classes = space.everybodys if space.labels == "global" else client.classes
        own = self.classes.shape[0] or client.y_train[:1].numel()
        self.outputs = max(own, space.most_classes or 0) if space.labels == "local" else own
        self.head = model.head(self.outputs)
        self.passed = Passed()
        self.seed = self.round_number = 0  # decide what is drawn at random; 0, 0: outside of any round
        self._space = space
        self._prepared: list[Tensor] = []

    @property
    def forward_passes(self) -> float:
        """How often its samples have gone forward through the backbone, on average: a whole number, or a fraction."""
        return _ratio(self.passed.forward, self.client.y_train.shape[0])

    @property
    def backward_passes(self) -> float:
        """How often there was a way back."""
        return _ratio(self.passed.backward, self.client.y_train.shape[0])

    @property
    def trunk_passes(self) -> float | None:
        """How often its samples have gone through the trunk whose outputs are kept; None: there is none."""
        client = self.client
        return _ratio(client.passed, self.samples) if isinstance(client, BeyondTrunk) else None

    @cached_property
    def x(self) -> Tensor:
        """Its inputs: the client's, or some of them."""
        return self.client.x_train

    def at(self, seed: int = 0, round_number: int = 0) -> Problem:
        """Give the same problem in a round, which decides what is drawn at random; or outside of any."""
        here = self._copy()
        here.seed, here.round_number = seed, round_number
        return here

    def _copy(self) -> Problem:
        copied = Problem.__new__(Problem)
        copied.__dict__.update(self.__dict__)
        return copied

    def generator(self, purpose: str) -> torch.Generator:
        """Give the generator of this client's draws in this round."""
        return torch_generator(self.seed, purpose, round_number=self.round_number, client=self.client.id)

    def masks(self, draw: str = "batches") -> torch.Generator | None:
        """Give the generator of dropout's masks in steps in training mode, where the backbone has one."""
        return self.generator(f"dropout, {draw}") if self.model.live else None

    def batches(self, size: int | None, steps: int, purpose: str = "batches") -> Iterator[Tensor | None]:
        """Draw which samples each of some steps looks at: all once, in a random order, before any comes again.

        The last of an epoch may be fewer than `size`. None: all samples at once.
        """
        if size is None or size >= self.samples:
            return repeat(None, steps)
        generator = self.generator(purpose)
        epochs = (torch.split(torch.randperm(self.samples, generator=generator), size) for _ in repeat(None))
        return islice(chain.from_iterable(epochs), steps)

    def part(self, batch: Tensor) -> Problem:
        """Give the same problem on some of the samples: its loss and gradients are theirs."""
        some = self._copy()
        some.x, some.targets, some.samples, some._prepared = (
            self.x[batch],
            self.targets[batch],
            len(batch),
            [],
        )
        some.__dict__.pop("kept", None)
        return some

    def some(self, most: int | None, purpose: str) -> Problem:
        """Give the same problem on so many samples, drawn at random in every round; where there are more."""
        if most is None or most >= self.samples:
            return self
        return self.part(torch.randperm(self.samples, generator=self.generator(purpose))[:most].sort().values)

    @property
    def whole(self) -> bool:
        """Whether it has all of the client's samples."""
        return self.samples == self.client.y_train.shape[0]

    @cached_property
    def kept(self) -> Kept:
        """What becomes of a pass of all its samples."""
        return self.plan(self.samples)

    def plan(self, samples: int, *, beside: int = 0) -> Kept:
        """Say what becomes of a pass of some samples, under the budget of memory, with numbers held beside them."""
        said, memory = self.streaming.slice_size, self.streaming.budget
        if isinf(memory.limit) or not samples:
            return Kept(said or self.model.slice, samples)
        a_number = torch.finfo(self.model.weight_dtype).bits // 8
        return replace(memory, limit=memory.limit - beside * a_number).plan(
            samples,
            self.model.activation_bytes(self.x[: min(_PROBE, said or _PROBE)].to(self.device)),
            self.model.features * a_number,
            sum(self.model.sizes.values()) * a_number,
            usual=self.model.slice,
            said=said,
        )

    def has_room(self, numbers: int) -> bool:
        """Tell whether all samples can pass at once, with so many numbers held beside them."""
        kept = self.plan(self.samples, beside=numbers)
        return kept.samples == self.samples and (kept.size is None or kept.size >= self.samples)

    @property
    def slice(self) -> int | None:
        """How many samples go through the backbone at a time; None: all."""
        return self.kept.size

    @cached_property
    def rows(self) -> Tensor:
        """Where its outputs stand among those of the whole federation."""
        if len(self.classes) == 0:
            return torch.arange(self.outputs, device=self.device)
        return torch.searchsorted(self._space.everybodys, self.classes).to(self.device)

    @cached_property
    def targets(self) -> Tensor:
        """The training labels as the loss takes them, with the weights of samples where they have any."""
        return with_weights(self.task, self.targets_of(self.client.y_train), self.client.weights)

    @property
    def weights(self) -> Tensor | None:
        """How much each sample counts, (samples,), 1 on average over the client; None: all alike."""
        return weights_in(self.task, self.targets)

    def new_head(self, how: HeadInit, seed: int) -> Weights:
        """Give this client's first head, a function of the seed and its id."""
        drawn = how != "zeros" or not isinstance(
            self.head, LinearHead
        )  # a linear head of zeros draws nothing
        generator = torch_generator(seed, "head", client=self.client.id) if drawn else torch.Generator()
        return self.head.init(how, generator, self.model.weight_dtype)

    def forward(self, weights: Weights, *, masks: torch.Generator | None = None) -> ForwardPass:
        """Pass all samples through the backbone once; with masks in training mode, as in `gradient`."""
        return ForwardPass([self], weights, masks=masks if self.model.live else None)

    def inputs(self) -> Iterable[Tensor]:
        """Prepare the samples for the backbone, in slices: kept for the next pass, unless memory is short."""
        if self.kept.samples < self.samples:
            return self.in_slices(self.x)
        if not self._prepared:
            self._prepared = list(self.in_slices(self.x))
        return self._prepared

    @torch.no_grad()
    def features(self, weights: Weights, batch: Tensor | None = None) -> Tensor:
        """Pass samples through the backbone, with no way back: all of them, or some; (samples, M)."""
        inputs = self.inputs() if batch is None else self.in_slices(self.x[batch])
        features = [self.model.phi(weights, part) for part in inputs]
        self.passed.forward += self.samples if batch is None else len(batch)
        return features[0] if len(features) == 1 else torch.cat(features)

    @torch.no_grad()
    def features_in_steps(self, weights: Weights) -> Tensor:
        """Pass all samples through the backbone as local steps do, but for dropout, which lets everything pass."""
        if not self.model.statistics:
            return self.features(weights)
        self.passed.forward += self.samples
        return self._phi_in_steps(weights, self.model.prepare(self.x, self.device))

    def _phi_in_steps(self, weights: Weights, x: Tensor, masks: torch.Generator | None = None) -> Tensor:
        if not self.model.statistics and masks is None:
            return self.model.phi(weights, x)
        return self.model.phi_in_training(self.model.with_own_statistics(weights), x, masks)

    def head_loss(self, weights: Weights, features: Tensor) -> float:
        """Compute the loss at a head, from features."""
        return self.head.loss(weights, features, self.targets, self.task)

    def head_objective(self, weights: Weights, features: Tensor, descent: Descent) -> float:
        """Compute what head steps descend: the loss, and the penalty of a decay."""
        return self.head_loss(weights, features) + descent.penalty(weights)

    def head_gradient(self, weights: Weights, features: Tensor) -> HeadGradient:
        """Compute loss and gradients at a head, from features."""
        return self.head.gradient(weights, features, self.targets, self.task)

    def head_steps(self, weights: Weights, features: Tensor, steps: int, descent: Descent) -> Weights:
        """Take steps on the head alone, from features."""
        return self.head.descend(weights, features, self.targets, self.task, steps, descent)

    def head_smoothness(self, weights: Weights, features: Tensor) -> float:
        """L_i, the smoothness constant of the loss as a function of the head."""
        return self.head.smoothness(weights, features, self.targets, self.task)

    def head_bound(self, weights: Weights, features: Tensor) -> HessianBound:
        """Bound the loss's Hessian in the head, the mean of the features apart where that is known."""
        return self.head.hessian_bound(weights, features, self.targets, self.task)

    def backbone_smoothness(self, weights: Weights, iterations: int) -> float:
        """Estimate the loss's smoothness constant in theta, where it is: one pass each way per iteration."""
        theta = {name: weights[name] for name in self.model.names}
        return self.smoothness(theta, lambda theta: {**weights, **theta}, iterations)

    def smoothness(
        self,
        point: Weights,
        weights_at: Callable[[Weights], Weights],
        iterations: int,
        *,
        tolerance: float = 0.0,
        penalty: theory.Part | None = None,
        on_features: FeatureTerm | None = None,
    ) -> float:
        """Estimate the smoothness constant of the loss, and a penalty, in any variables, where they are.

        `weights_at` gives backbone and head at a point; a loss of the features is added, as in `gradient`. One pass
        each way per iteration.
        """
        parts = self._parts(weights_at, on_features)
        return theory.smoothness([*parts, *([penalty] if penalty else [])], point, iterations, tolerance)

    def curvature(
        self,
        weights: Weights,
        vector: Weights,
        batch: Tensor | None = None,
        *,
        masks: torch.Generator | None = None,
    ) -> Weights:
        """Multiply a vector by the Hessian of the loss in the weights that it names: one pass each way.

        Dropout draws from `masks`, or lets everything pass.
        """
        here = self if batch is None else self.part(batch)
        point = {name: weights[name] for name in vector}
        parts = here._parts(lambda moved: {**weights, **moved}, masks=masks)
        return theory.hessian_product(parts, point, vector)

    def gradient(
        self,
        weights: Weights,
        batch: Tensor | None = None,
        *,
        on_features: FeatureTerm | None = None,
        masks: torch.Generator | None = None,
        seen: Tensor | None = None,
    ) -> Weights:
        """Compute the joint gradient of backbone and head, over all samples or a batch: one pass each way.

        A slice of the samples goes both ways before the next, so that only its activations are in memory. A loss of
        the features, a mean over the samples it is given, is added if there is one. The features are written into
        `seen`, (samples, M), each in its sample's row, if it is given.

        With `masks` the backbone is in training mode, where it has one: dropout draws from them, and batch norm moves
        the statistics among the weights in place. A batch then goes through in one piece.
        """
        samples = self.samples if batch is None else len(batch)
        masks = masks if self.model.live else None
        size = (self.slice if masks is None else None) or samples
        inputs = self._inputs(batch, in_one_piece=masks is not None)
        targets = self.targets if batch is None else self.targets[batch]
        places = torch.arange(samples) if batch is None else batch
        self.passed.forward += samples
        self.passed.backward += samples
        if size >= samples:
            [x] = inputs
            return self._part_gradient(weights, x, targets, places, on_features, masks, seen)
        parts = zip(inputs, torch.split(targets, size), torch.split(places, size), strict=True)
        return weighted_sum(
            (len(t) / samples, self._part_gradient(weights, x, t, at, on_features, masks, seen))
            for x, t, at in parts
        )

    def _part_gradient(
        self,
        weights: Weights,
        inputs: Tensor,
        targets: Tensor,
        places: Tensor,
        on_features: FeatureTerm | None,
        masks: torch.Generator | None,
        seen: Tensor | None,
    ) -> Weights:
        forward = ForwardPass([self], weights, part=inputs, masks=masks)
        if seen is not None:
            seen[places] = forward.features
        at_head = self.head.gradient(weights, forward.features, targets, self.task)
        slopes = self.with_term(at_head.features, forward.features, places, on_features)
        return {**forward.backward(slopes), **at_head.head}

    def with_term(
        self, slopes: Tensor, features: Tensor, places: Tensor, on_features: FeatureTerm | None
    ) -> Tensor:
        """Add the gradient of a loss of the features, if there is one."""
        if on_features is None:
            return slopes
        with torch.enable_grad():
            features = features.detach().requires_grad_()
            return slopes + torch.autograd.grad(on_features(features, places), features)[0]

    def _parts(
        self,
        weights_at: Callable[[Weights], Weights],
        on_features: FeatureTerm | None = None,
        masks: torch.Generator | None = None,
    ) -> list[theory.Part]:
        """Split the loss into those of slices of the samples, as functions of any variables: a pass each way counts."""

        def loss_of(x: Tensor, targets: Tensor, places: Tensor) -> theory.Part:
            def loss(point: Weights) -> Tensor:
                self.passed.forward += len(x)
                self.passed.backward += len(x)
                weights = weights_at(point)
                features = self._phi_in_steps(weights, self.model.prepare(x, self.device), masks)
                value = self.task.loss(self.head.outputs(weights, features), targets)
                if on_features is not None:
                    value = value + on_features(features, places)
                return len(x) / self.samples * value

            return loss

        in_one_piece = bool(self.model.statistics) or masks is not None
        size = self.samples if in_one_piece else self.slice or self.samples
        slices = zip(
            torch.split(self.x, size),
            torch.split(self.targets, size),
            torch.split(torch.arange(self.samples), size),
            strict=True,
        )
        return [loss_of(x, targets, places) for x, targets, places in slices]

    @torch.no_grad()
    def loss(self, weights: Weights) -> float:
        """Look at the training loss. No part of a client's work, so the pass is not counted."""
        features = torch.cat([self.model.phi(weights, inputs) for inputs in self.inputs()])
        return self.head_loss(weights, features)

    def test(self, weights: Weights) -> Score:
        """Look at the result on the test data. No part of a client's work, so the pass is not counted."""
        return score_of(self, weights, self.client.x_test, self.client.y_test)

    def test_on_training_data(self, weights: Weights) -> Score:
        """Look at the result on the data that it learned from, which is not counted either."""
        return score_of(self, weights, self.client.x_train, self.client.y_train)

    def test_features(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """Pass the test samples through the backbone; give features and targets. The pass is not counted."""
        return self.seen(weights, self.client.x_test, self.client.y_test)

    @torch.no_grad()
    def seen(self, weights: Weights, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Pass any samples through the backbone; give features and targets. The pass is not counted."""
        features = [self.model.phi(weights, inputs) for inputs in self.in_slices(x)]
        return torch.cat(features), self.targets_of(y)

    def targets_of(self, y: Tensor) -> Tensor:
        """Give labels as the loss takes them, (samples, outputs), without weights."""
        targets = self.task.targets(y, self.classes, self.model.weight_dtype)
        if targets.shape[1] < self.outputs:
            targets = functional.pad(targets, (0, self.outputs - targets.shape[1]))
        return targets.to(self.device)

    def _inputs(self, batch: Tensor | None, *, in_one_piece: bool) -> Iterable[Tensor]:
        if in_one_piece and self.slice is not None:
            return [self.model.prepare(self.x if batch is None else self.x[batch], self.device)]
        return self.inputs() if batch is None else self.in_slices(self.x[batch])

    def in_slices(self, x: Tensor, size: int | None = None) -> Iterator[Tensor]:
        """Prepare samples for the backbone, a slice at a time: of the usual size, if none is said."""
        size = size or self.slice or len(x)
        return (self.model.prepare(part, self.device) for part in _pieces(x, size))


def _pieces(tensor: Tensor, size: int) -> Sequence[Tensor]:
    """Split it, which takes time, only where there is more than one piece."""
    return torch.split(tensor, size) if size < len(tensor) else [tensor]


def _ratio(part: int, whole: int) -> float:
    return part // whole if part % whole == 0 else float(Fraction(part, whole))


def __getattr__(name: str) -> object:
    """Give what stands in problems.py, which needs this module, to those who ask for it here."""
    if name == "Problems":
        from pflego.learning.problems import Problems

        return Problems
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
