"""The heads of several clients, each on its part of common features: in one call for all of them where it can be.

What a client's head costs beside the backbone is little, and with twenty samples less than the call that asks for it.
Where all heads are linear, the task is classification and the compiled loops are there, they go from one client to the
next by themselves, and the result is the same to the bit. Other linear heads stand side by side in one tensor
(head_batch.py), with the same result but for rounding; heads of any other kind follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflego.learning.head_batch import HeadBatch, batched
from pflego.learning.heads import HEAD, Descent, HeadGradient, HessianBound
from pflego.learning.heads.bound import centred_bound
from pflego.learning.heads.linear import LinearHead, compiled_loops
from pflego.learning.problem import Problem
from pflego.learning.theory import ITERATIONS, first_vector
from pflego.weights import Weights, step

T = TypeVar("T")
Places = npt.NDArray[np.int64]  # where each client's part begins, and the last one ends

_NOTHING = np.empty((0, 0), np.float32)


class HeadGroup:
    """Some clients' losses as functions of their heads, from features, (samples of all, M), in their order."""

    def __init__(self, problems: Sequence[Problem], features: Tensor) -> None:
        self.problems = problems
        self.features = features
        self.parts = torch.split(features, [problem.samples for problem in problems])  # (N_i, M) each

    def smoothness(self, heads: Sequence[Weights]) -> list[float]:
        """L_i of every client's loss in its head."""
        if not (loops := self._loops(heads)):
            if self._side_by_side(heads):
                return self._spread(lambda batch, _: batch.smoothness())
            return [p.head_smoothness(w, phi) for p, w, phi in self._each(heads)]
        return self._constants(loops, _NOTHING)

    def hessian_bounds(self, heads: Sequence[Weights]) -> list[HessianBound]:
        """Bound every client's Hessian, the mean of its features apart."""
        if not (loops := self._loops(heads)):
            if self._side_by_side(heads):
                return self._spread(lambda batch, _: batch.hessian_bounds())
            return [p.head_bound(w, phi) for p, w, phi in self._each(heads)]
        means = torch.empty(len(heads), self.features.shape[1] + 1)
        constants = self._constants(loops, means.numpy())
        return [
            centred_bound(mean, constant, problem.task.curvature)
            for mean, constant, problem in zip(means, constants, self.problems, strict=True)
        ]

    def descend(self, heads: Sequence[Weights], steps: int, descents: Sequence[Descent]) -> list[Weights]:
        """Let every head take its steps."""
        plain = all(d.rule == "gd" for d in descents)
        loops = self._loops(heads) if steps and plain else None
        if not loops:
            if steps and plain and self._side_by_side(heads):
                return self._spread(
                    lambda batch, at: batch.descend([heads[i] for i in at], steps, [descents[i] for i in at])
                )
            return [
                problem.head_steps(head, phi, steps, descent)
                for (problem, head, phi), descent in zip(self._each(heads), descents, strict=True)
            ]
        flat, anchors, means = _flat(heads), _NOTHING, _NOTHING
        if any(d.decay for d in descents):
            zeros = [torch.zeros_like(head[HEAD]) for head in heads]
            anchors = _flat([d.anchor or {HEAD: zero} for d, zero in zip(descents, zeros, strict=True)])
        if known := [d.mean for d in descents if d.mean is not None]:
            means = torch.stack(known).numpy()
        rates, decays, shares = (
            np.array([getattr(d, name) for d in descents]) for name in ("rate", "decay", "share")
        )
        loops.softmax_steps_of_each(
            *(flat, self._heads, self._phi, self._samples, self._labels, anchors, means),
            *(steps, rates, decays, shares),
        )
        return self._weights(flat)

    def gradient(self, heads: Sequence[Weights]) -> list[HeadGradient]:
        """Compute every client's loss and joint gradient."""
        if not (loops := self._loops(heads)):
            if self._side_by_side(heads):
                return self._spread(lambda batch, at: batch.gradient([heads[i] for i in at]))
            return [p.head_gradient(w, phi) for p, w, phi in self._each(heads)]
        flat, losses = _flat(heads), self._room
        gradients, slopes = torch.empty(flat.shape), torch.empty(self._phi.shape)
        loops.softmax_gradients(
            *(flat, self._heads, self._phi, self._samples, self._labels),
            *(slopes.numpy(), gradients.numpy(), losses),
        )
        parts = torch.split(slopes, [problem.samples for problem in self.problems])
        return [
            HeadGradient(loss, head, part)
            for loss, head, part in zip(losses.tolist(), self._split(gradients), parts, strict=True)
        ]

    def loss(self, heads: Sequence[Weights]) -> list[float]:
        """Compute every client's loss."""
        if not (loops := self._loops(heads)):
            if self._side_by_side(heads):
                return self._spread(lambda batch, at: batch.loss([heads[i] for i in at]))
            return [p.head_loss(w, phi) for p, w, phi in self._each(heads)]
        losses = self._room
        loops.softmax_losses(_flat(heads), self._heads, self._phi, self._samples, self._labels, losses)
        found: list[float] = losses.tolist()
        return found

    def slopes(self, gradients: Sequence[HeadGradient], weights: Sequence[float]) -> Tensor:
        """Give d sum_i w_i l_i / d features, (samples of all, M), from every client's own."""
        if len(gradients) == 1:
            return gradients[0].features if weights[0] == 1 else gradients[0].features * weights[0]
        features = torch.cat([gradient.features for gradient in gradients])
        if all(weight == 1 for weight in weights):
            return features
        counts = torch.tensor([problem.samples for problem in self.problems], device=features.device)
        each = torch.tensor(weights, dtype=features.dtype, device=features.device)
        return features.mul_(each.repeat_interleave(counts)[:, None])

    def step(
        self, heads: Sequence[Weights], gradients: Sequence[Weights], rates: Sequence[float]
    ) -> list[Weights]:
        """Take one step on every head, each at its own rate."""
        if not all(isinstance(problem.head, LinearHead) for problem in self.problems):
            return list(map(step, heads, gradients, rates))
        rows = torch.cat([head[HEAD] for head in heads])
        slopes = torch.cat([gradient[HEAD] for gradient in gradients])
        outputs = torch.tensor([problem.outputs for problem in self.problems], device=rows.device)
        each = torch.tensor(rates, dtype=rows.dtype, device=rows.device).repeat_interleave(outputs)
        ended = self._split(torch.addcmul(rows, slopes, each[:, None], value=-1))
        return [
            {HEAD: head[HEAD].clone()} for head in ended
        ]  # they are kept, and must not keep all the others

    def _each(self, heads: Sequence[Weights]) -> list[tuple[Problem, Weights, Tensor]]:
        return list(zip(self.problems, heads, self.parts, strict=True))

    def _loops(self, heads: Sequence[Weights]) -> ModuleType | None:
        """Return the compiled loops, where there are several heads and all are of the kind they know."""
        if len(heads) < 2 or not all(isinstance(problem.head, LinearHead) for problem in self.problems):
            return None
        if self.features.dtype != torch.float32:
            return None
        return compiled_loops(heads[0][HEAD], self.problems[0].task)

    def _side_by_side(self, heads: Sequence[Weights]) -> bool:
        """Tell whether there are several heads, all linear and of the features' own type."""
        linear = len(heads) > 1 and all(isinstance(problem.head, LinearHead) for problem in self.problems)
        return linear and heads[0][HEAD].dtype == self.features.dtype

    def _spread(self, compute: Callable[[HeadBatch, Sequence[int]], Sequence[T]]) -> list[T]:
        """Compute something for clients that stand side by side; give it in the order of all."""
        found = {
            place: one
            for places, batch in self._batches
            for place, one in zip(places, compute(batch, places), strict=True)
        }
        return [found[place] for place in range(len(self.problems))]

    @cached_property
    def _batches(self) -> list[tuple[list[int], HeadBatch]]:
        return list(batched(self.problems, self.parts))

    def _constants(self, loops: ModuleType, means: npt.NDArray[np.float32]) -> list[float]:
        """c lambda_max of every client, around the mean of its rows where there is room to write the means."""
        found = self._room
        first = first_vector(self.features.shape[1] + 1)[None].numpy()
        loops.largest_eigenvalues(self._phi, self._samples, means, first, ITERATIONS, found)
        return [p.task.curvature * float(one) for p, one in zip(self.problems, found, strict=True)]

    @property
    def _room(self) -> npt.NDArray[np.float64]:
        return np.empty(len(self.problems))

    @cached_property
    def _phi(self) -> npt.NDArray[np.float32]:
        phi: npt.NDArray[np.float32] = self.features.contiguous().numpy()
        return phi

    @cached_property
    def _labels(self) -> npt.NDArray[np.float32]:
        """All labels, one-hot, client after client: as many for a sample as its client's head has outputs."""
        if (alike := self._labels_alike) is None:
            alike = torch.cat([p.targets.reshape(-1) for p in self.problems])
        labels: npt.NDArray[np.float32] = alike.reshape(-1).numpy()
        return labels

    @property
    def _labels_alike(self) -> Tensor | None:
        """All labels in one comparison, (samples of all, K), where all clients have K classes and outputs."""
        problems = self.problems
        width = problems[0].outputs
        if not all(p.whole and p.outputs == width == p.classes.shape[0] for p in problems):
            return None
        counts = torch.tensor([p.samples for p in problems])
        classes = torch.stack([p.classes for p in problems]).repeat_interleave(counts, dim=0)
        y = torch.cat([p.client.y_train for p in problems])
        return (y[:, None] == classes).to(torch.float32)

    @cached_property
    def _samples(self) -> Places:
        return _places([problem.samples for problem in self.problems])

    @cached_property
    def _heads(self) -> Places:
        return _places([problem.outputs for problem in self.problems])

    def _weights(self, flat: npt.NDArray[np.float32]) -> list[Weights]:
        """Give each client its rows: a part of the memory of all."""
        return self._split(torch.from_numpy(flat))

    def _split(self, rows: Tensor) -> list[Weights]:
        return [{HEAD: part} for part in torch.split(rows, [problem.outputs for problem in self.problems])]


def _places(sizes: Sequence[int]) -> Places:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _flat(heads: Sequence[Weights]) -> npt.NDArray[np.float32]:
    """Put the rows of all heads below each other, in memory of their own."""
    rows: npt.NDArray[np.float32] = torch.cat([head[HEAD] for head in heads]).numpy()
    return rows
