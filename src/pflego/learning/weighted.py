"""Samples that count differently: a task whose targets carry one more column, how much each sample counts.

    l_i = sum_j s_ij l_ij / sum_j s_ij = mean_j w_ij l_ij,        w_ij = s_ij N_i / sum_j s_ij

The weights w_ij have mean 1 over a client's samples, so that everything else about a loss, a mean over samples, stays
as it is: slices add up to the whole, and a mini-batch drawn at random has the whole loss on average. Tests are plain:
every test sample counts alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pflego.learning.task import Task


@dataclass(frozen=True)
class Weighted:
    """A task on targets with weights in their last column: (samples, outputs + 1)."""

    task: Task

    @property
    def metric(self) -> str:
        """That of the task."""
        return self.task.metric

    @property
    def higher_is_better(self) -> bool:
        """As in the task."""
        return self.task.higher_is_better

    @property
    def curvature(self) -> float:
        """That of a sample of weight 1."""
        return self.task.curvature

    def targets(self, y: Tensor, classes: Tensor, dtype: torch.dtype) -> Tensor:
        """t without weights, which are no labels."""
        return self.task.targets(y, classes, dtype)

    def known(self, targets: Tensor) -> bool:
        """Tell whether any of the samples has a loss."""
        return self.task.known(targets[:, :-1])

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """mean_j w_j l_j, over the samples that have a loss."""
        losses, known = self.losses(z, targets)
        return losses.sum() / known.sum()

    def losses(self, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """w_j l_j, and 1 where there is a loss."""
        losses, known = self.task.losses(z, targets[:, :-1])
        return losses * targets[:, -1], known

    def residual(self, z: Tensor, targets: Tensor, *, dim: int = 1) -> Tensor:
        """w_j (link(z) - t); outputs along `dim`, and so weights at its end."""
        outputs = targets.shape[dim] - 1
        plain = self.task.residual(z, targets.narrow(dim, 0, outputs), dim=dim)
        return plain * targets.narrow(dim, outputs, 1)

    def scores(self, z: Tensor, targets: Tensor) -> Tensor:
        """Compute one number per sample, whatever its weight."""
        return self.task.scores(z, targets[:, :-1])

    def metric_value(self, mean_score: float) -> float:
        """Compute the metric from the mean of the scores."""
        return self.task.metric_value(mean_score)


def with_weights(task: Task, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Give targets as a task takes them: with a client's weights, or 1 where it has none, if it takes any."""
    if not isinstance(task, Weighted):
        return targets
    each = targets.new_ones(len(targets))
    if weights is not None:
        scaled = weights.double() / weights.max()  # a sum of large ones must not overflow
        each = (scaled * (len(scaled) / scaled.sum())).to(targets)
    return torch.cat([targets, each[:, None]], dim=1)


def plain(task: Task) -> Task:
    """Give the task of samples that all count alike."""
    return task.task if isinstance(task, Weighted) else task


def labels_in(task: Task, targets: Tensor) -> Tensor:
    """Give t alone, (samples, outputs)."""
    return targets[:, :-1] if isinstance(task, Weighted) else targets


def weights_in(task: Task, targets: Tensor) -> Tensor | None:
    """Give how much each sample counts, (samples,), 1 on average over a client; None: all alike."""
    return targets[:, -1] if isinstance(task, Weighted) else None


def effective_samples(samples: int, weights: Tensor | None) -> float:
    """Count the samples of equal weight that would tell as much as these: (sum w)^2 / sum w^2.

    >>> effective_samples(3, torch.tensor([1.5, 1.5, 0.0]))
    2.0
    """
    return samples if weights is None else float(weights.sum() ** 2 / weights.square().sum())


def average(values: Tensor, weights: Tensor | None) -> Tensor:
    """Average over samples, (samples, ...), as the loss does; without weights, all alike.

    >>> average(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 1.5]))
    tensor(2.5000)
    """
    if weights is None:
        return values.mean(dim=0)
    return (values * weights.to(values).reshape(-1, *[1] * (values.dim() - 1))).mean(dim=0)
