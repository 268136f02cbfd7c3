"""Linear heads of several clients in one tensor: as many steps as there are, each for all clients at once.

Clients with equally many outputs and similarly many samples are put side by side, (clients, samples, features), the
shorter ones filled up with rows of zeros. A row of zeros in Phi, the column of ones included, adds nothing to a product
with it, and its loss is not counted: what comes out is each client's own, up to rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pflego.learning.heads import HEAD, Descent, HeadGradient
from pflego.learning.problem import Problem
from pflego.learning.task import Task
from pflego.learning.theory import ITERATIONS, first_vector
from pflego.learning.weighted import weights_in
from pflego.weights import Weights


@dataclass(frozen=True)
class HeadBatch:
    """Clients side by side."""

    problems: Sequence[Problem]
    parts: Sequence[Tensor]  # their features, (N_i, M)

    @property
    def task(self) -> Task:
        """What all of them learn."""
        return self.problems[0].task

    @cached_property
    def phi(self) -> Tensor:
        """Their features and a column of ones, (C, n, M + 1)."""
        return pad_sequence(
            [torch.cat([part, part.new_ones(len(part), 1)], dim=1) for part in self.parts], batch_first=True
        )

    @cached_property
    def targets(self) -> Tensor:
        """Their labels, (C, n, K), and weights in one more column where samples have them."""
        return pad_sequence([problem.targets for problem in self.problems], batch_first=True)

    @cached_property
    def counts(self) -> Tensor:
        """N_i, (C, 1, 1)."""
        sizes = [problem.samples for problem in self.problems]
        return torch.tensor(sizes, dtype=self.phi.dtype, device=self.phi.device)[:, None, None]

    def smoothness(self) -> list[float]:
        """c lambda_max(Phi^T Phi / n) of every client, its samples' weights included, by the power method."""
        each = [weights_in(self.task, problem.targets) for problem in self.problems]
        counted = self.phi
        if known := [own for own in each if own is not None]:
            counted = self.phi * pad_sequence(known, batch_first=True)[:, :, None]
        first = first_vector(self.phi.shape[2]).to(self.phi)
        now = first.expand(len(self.parts), -1)[:, :, None]  # (C, M + 1, 1)
        for _ in range(ITERATIONS):
            now = now / now.norm(dim=1, keepdim=True)
            now = counted.mT @ (self.phi @ now) / self.counts
        return [self.task.curvature * size for size in now.norm(dim=1).flatten().tolist()]

    def descend(self, heads: Sequence[Weights], steps: int, descents: Sequence[Descent]) -> list[Weights]:
        """Take plain gradient steps, each client at its rate."""
        head = torch.stack([one[HEAD] for one in heads])  # (C, K, M + 1)
        rates, decays = (
            head.new_tensor([getattr(d, name) for d in descents])[:, None, None] for name in ("rate", "decay")
        )
        anchors = torch.zeros_like(head)
        for place, descent in enumerate(descents):
            if descent.decay and descent.anchor:
                anchors[place] = descent.anchor[HEAD]
        size, decaying = rates / self.counts, any(d.decay for d in descents)
        for _ in range(steps):
            move = (self._residual(head) * size).mT @ self.phi
            if decaying:
                move = move + rates * decays * (head - anchors)
            head = head - move
        return [{HEAD: one} for one in head]

    def gradient(self, heads: Sequence[Weights]) -> list[HeadGradient]:
        """Compute every client's loss and joint gradient."""
        head = torch.stack([one[HEAD] for one in heads])
        slope = self._residual(head) / self.counts
        at_features, at_head = slope @ head[:, :, :-1], slope.mT @ self.phi
        return [
            HeadGradient(loss, {HEAD: own}, features[: problem.samples])
            for loss, own, features, problem in zip(
                self.loss(heads), at_head, at_features, self.problems, strict=True
            )
        ]

    def loss(self, heads: Sequence[Weights]) -> list[float]:
        """Compute every client's loss."""
        z = self.phi @ torch.stack([one[HEAD] for one in heads]).mT
        losses, known = self.task.losses(z.flatten(0, 1), self.targets.flatten(0, 1))
        there = torch.arange(z.shape[1], device=z.device) < self.counts[:, 0]
        summed = [(one.view(z.shape[:2]) * there).sum(dim=1) for one in (losses, known)]
        found: list[float] = (summed[0] / summed[1]).tolist()
        return found

    def _residual(self, head: Tensor) -> Tensor:
        z = self.phi @ head.mT  # (C, n, K)
        return self.task.residual(z.flatten(0, 1), self.targets.flatten(0, 1)).view(z.shape)


def batched(problems: Sequence[Problem], parts: Sequence[Tensor]) -> Iterator[tuple[list[int], HeadBatch]]:
    """Put clients side by side that have as many outputs, and up to twice as many samples; say who is where."""
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, problem in enumerate(problems):
        alike[problem.outputs, problem.samples.bit_length()].append(place)
    for places in alike.values():
        yield places, HeadBatch([problems[p] for p in places], [parts[p] for p in places])
