"""What one client can compute: features, losses and gradients on its own data, through a kit.

What goes through the backbone is counted here, where it does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, repeat
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from pflego_light.arrays import HEAD, Array, Floats, Weights
from pflego_light.data import Data
from pflego_light.head import Bound, Gradient, Sight, loss_of
from pflego_light.kit import Kit
from pflego_light.memory import plan
from pflego_light.randomness import Generator
from pflego_light.round import Federation

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Score:
    """A test result, in sums that can be pooled."""

    samples: int
    loss: float | None
    score: float


@dataclass
class Passed:
    """How many samples have gone through the backbone, either way."""

    forward: int = 0
    backward: int = 0


class Problem:
    """A client's loss l_i(W, theta), and its gradients."""

    def __init__(self, kit: Kit, data: Data, federation: Federation) -> None:
        kit.check(data.x_train)
        self.kit, self.data = kit, data
        self.softmax = data.task == "classification"
        self.x = data.x_train
        self.samples = len(self.x)
        self.passed = Passed()
        self.seed = self.round_number = 0  # decide what is drawn at random; 0, 0: outside of any round
        labels = kit.spec["labels"]
        classes = federation.classes if labels == "global" else data.classes
        own = len(classes) or data.outputs
        self.outputs = max(own, federation.most_classes) if labels == "local" else own
        self.classes = np.array(classes, dtype=np.int64)
        self._everybodys = np.array(federation.classes, dtype=np.int64)
        self.targets = self._targets(data.y_train)

    @cached_property
    def rows(self) -> Places:
        """Where its outputs stand among those of the whole federation."""
        if not len(self.classes):
            return np.arange(self.outputs)
        return np.searchsorted(self._everybodys, self.classes)

    def at(self, seed: int = 0, round_number: int = 0) -> Problem:
        """Give the same problem in a round, which decides what is drawn at random; or outside of any."""
        here = copy.copy(self)
        here.seed, here.round_number = seed, round_number
        return here

    def passes(self, way: str) -> float:
        """How often its samples have gone through the backbone, forward or backward, on average."""
        return float(getattr(self.passed, way)) / len(self.data.x_train)

    def generator(self, purpose: str) -> Generator:
        """Give the generator of this client's draws in this round."""
        return Generator(self.seed, purpose, round_number=self.round_number, client=self.data.id)

    def batches(self, size: int | None, steps: int, purpose: str) -> Iterator[Places | None]:
        """Draw which samples each of some steps looks at: all once, in a random order, before any comes again."""
        if size is None or size >= self.samples:
            return repeat(None, steps)
        generator = self.generator(purpose)
        orders = (generator.permutation(self.samples) for _ in repeat(None))
        pieces = ([order[i : i + size] for i in range(0, self.samples, size)] for order in orders)
        return islice(chain.from_iterable(pieces), steps)

    def some(self, most: int | None, purpose: str) -> Problem:
        """Give the same problem on so many samples, drawn at random in every round; where there are more."""
        if most is None or most >= self.samples:
            return self
        chosen = np.sort(self.generator(purpose).permutation(self.samples)[:most])
        part = copy.copy(self)
        part.x, part.targets, part.samples = self.x[chosen], self.targets[chosen], most
        return part

    def new_head(self, how: str, seed: int) -> Floats:
        """Draw this client's first head, (K, M + 1), a function of the seed and its id."""
        rows, columns = self.outputs, self.kit.features + 1
        if how == "zeros":
            return np.zeros((rows, columns), np.float32)
        drawn = Generator(seed, "head", client=self.data.id).uniform(rows, columns)
        if how == "centred":
            drawn = drawn - drawn.mean(axis=0)
        elif how == "layer":
            drawn = (2 * drawn - 1) / self.kit.features**0.5
        return drawn.astype(np.float32)

    def sight(self, features: Floats) -> Sight:
        """Give what a head sees of all samples."""
        return Sight(features, self.targets, self.softmax)

    def smoothness(self, sight: Sight) -> float:
        """L of the loss as a function of the head, by the power method."""
        power = self.kit.spec["smoothness"]
        return sight.smoothness(np.array(power["start"], np.float32), power["iterations"])

    def bound(self, sight: Sight) -> Bound:
        """Bound the Hessian of the loss in the head, the mean of the features apart."""
        power = self.kit.spec["smoothness"]
        return sight.bound(np.array(power["start"], np.float32), power["iterations"], power["least"])

    def features(self, weights: Weights) -> Floats:
        """Pass all samples through the backbone, with no way back; (samples, M)."""
        self.passed.forward += self.samples
        return self._phi(weights, self.x)

    def forward(self, weights: Weights) -> ForwardPass:
        """Pass all samples through the backbone once."""
        return ForwardPass(self, weights)

    def gradient(self, weights: Weights, batch: Places | None = None) -> Weights:
        """Compute the joint gradient of backbone and head, over all samples or a batch: one pass each way.

        A slice of the samples goes both ways before the next, so that only its activations are in memory.
        """
        x, targets = (self.x, self.targets) if batch is None else (self.x[batch], self.targets[batch])
        keep = self.kit.graphs.can_keep
        self.passed.forward += len(x) * (1 if keep else 2)
        self.passed.backward += len(x)
        theta, total = self.theta(weights), dict[str, Floats]()
        for part in self._slices(len(x)):
            phi, passed = self.kit.graphs.forward(theta, self.kit.prepare(x[part]), keep=keep)
            at = Sight(phi, targets[part], self.softmax).gradient(weights[HEAD])
            share = np.float32(len(phi) / len(x))
            back = self.kit.graphs.backward(passed, at.features, list(theta), kept=keep)
            found = {**back, HEAD: at.head}
            for name, slope in found.items():
                total[name] = slope * share if name not in total else total[name] + slope * share
        return total

    def loss(self, weights: Weights) -> float:
        """Look at the training loss. No part of a client's work, so the pass is not counted."""
        return self.sight(self._phi(weights, self.x)).loss(weights[HEAD])

    def test(self, weights: Weights) -> Score:
        """Look at the result on the test data. No part of a client's work, so the pass is not counted."""
        if not len(self.data.x_test):
            return Score(0, None, 0.0)
        targets = self._targets(self.data.y_test)
        sight = Sight(self._phi(weights, self.data.x_test), targets, self.softmax)
        z = sight.outputs(weights[HEAD])
        known = not self.softmax or bool(targets.any())
        loss = loss_of(z, sight.wanted, softmax=self.softmax) if known else float("nan")
        if self.softmax:
            right = targets[np.arange(len(targets)), z.argmax(axis=0)]
            total = float(np.where(np.isnan(z).any(axis=0), 0, right).sum())
        else:
            total = float(np.square(z - sight.wanted).mean(axis=0).sum())
        return Score(len(targets), loss if isfinite(loss) else None, total)

    def theta(self, weights: Weights) -> Weights:
        """Take the backbone's weights."""
        return {name: weights[name] for name in self.kit.shapes}

    def _phi(self, weights: Weights, x: Array) -> Floats:
        theta = self.theta(weights)
        parts = [self.kit.graphs.features(theta, self.kit.prepare(x[part])) for part in self._slices(len(x))]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _slices(self, count: int) -> list[slice]:
        size = plan(self.kit.spec, self.samples).size
        return [slice(begin, begin + size) for begin in range(0, count, size)]

    def _targets(self, y: Array) -> Floats:
        if not self.softmax:
            return np.ascontiguousarray(y.reshape(len(y), -1), dtype=np.float32)
        targets = np.zeros((len(y), self.outputs), np.float32)
        targets[:, : len(self.classes)] = y[:, None] == self.classes
        return targets


class ForwardPass:
    """A pass of a client's samples through the backbone. One backward pass can follow it."""

    def __init__(self, problem: Problem, weights: Weights) -> None:
        self._problem, self._theta = problem, problem.theta(weights)
        graphs, kit = problem.kit.graphs, problem.kit
        self._parts = problem._slices(problem.samples)
        self._kept = plan(kit.spec, problem.samples).samples if graphs.can_keep else 0
        self._passed: list[Mapping[str, Any]] = []  # of those samples whose activations are kept
        features = []
        for part in self._parts:
            keep = part.start < self._kept
            phi, passed = graphs.forward(self._theta, kit.prepare(problem.x[part]), keep=keep)
            features.append(phi)
            if keep:
                self._passed.append(passed)
        problem.passed.forward += problem.samples
        self.features = features[0] if len(features) == 1 else np.concatenate(features)

    def backward(self, slopes: Floats) -> Weights:
        """Turn d loss / d phi into d loss / d theta. The activations are spent."""
        problem, kit, total = self._problem, self._problem.kit, dict[str, Floats]()
        problem.passed.backward += problem.samples
        problem.passed.forward += problem.samples - min(self._kept, problem.samples)
        for place, part in enumerate(self._parts):
            if kept := place < len(self._passed):
                passed = self._passed[place]
            else:
                passed = {**self._theta, kit.spec["names"]["input"]: kit.prepare(problem.x[part])}
            found = kit.graphs.backward(passed, slopes[part], list(self._theta), kept=kept)
            for name, slope in found.items():
                total[name] = total[name] + slope if name in total else slope
        self._passed.clear()
        return total


__all__ = ["ForwardPass", "Gradient", "Problem", "Score"]
