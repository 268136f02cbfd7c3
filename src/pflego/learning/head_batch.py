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

from pflego.learning.heads import HEAD, Descent, HeadGradient, HessianBound
from pflego.learning.heads.bound import centred_bound
from pflego.learning.problem import Problem
from pflego.learning.task import Task
from pflego.learning.theory import ITERATIONS, first_vector, mean_row
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
        return self._largest(self.phi)

    def hessian_bounds(self) -> list[HessianBound]:
        """Bound every client's Hessian, the mean of its features apart."""
        means = [mean_row(part, each) for part, each in zip(self.parts, self._weights, strict=True)]
        around = pad_sequence(
            [row[: len(part)] - mean for row, part, mean in zip(self.phi, self.parts, means, strict=True)],
            batch_first=True,
        )
        bounds = zip(means, self._largest(around), strict=True)
        return [centred_bound(mean, constant, self.task.curvature) for mean, constant in bounds]

    def _largest(self, phi: Tensor) -> list[float]:
        """c lambda_max of every client's rows, (C, n, M + 1)."""
        counted = phi
        if known := [own for own in self._weights if own is not None]:
            counted = phi * pad_sequence(known, batch_first=True)[:, :, None]
        first = first_vector(phi.shape[2]).to(phi)
        now = first.expand(len(self.parts), -1)[:, :, None]  # (C, M + 1, 1)
        for _ in range(ITERATIONS):
            now = now / now.norm(dim=1, keepdim=True).clamp_min(torch.finfo(phi.dtype).tiny)
            now = counted.mT @ (phi @ now) / self.counts
        return [self.task.curvature * size for size in now.norm(dim=1).flatten().tolist()]

    @cached_property
    def _weights(self) -> list[Tensor | None]:
        return [weights_in(self.task, problem.targets) for problem in self.problems]

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
        means, shares = self._means(descents)
        for _ in range(steps):
            move = (self._residual(head) * size).mT @ self.phi
            if decaying:
                move = move + rates * decays * (head - anchors)
            if shares is not None:
                move = move - shares * (move @ means) * means.mT
            head = head - move
        return [{HEAD: one} for one in head]

    def _means(self, descents: Sequence[Descent]) -> tuple[Tensor, Tensor | None]:
        """Put the means of descents side by side, (C, M + 1, 1), and the shares, (C, 1, 1), where there are any."""
        known = [d.mean for d in descents if d.mean is not None]
        if not known:
            return self.phi.new_empty(0), None
        return torch.stack(known)[:, :, None], self.phi.new_tensor([d.share for d in descents])[:, None, None]

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
