"""What is learned: the loss of a client, its gradient in closed form, and the metric people read.

z are a model's outputs and t its targets, both (samples, outputs). Every loss is a mean over the n samples,
eq. (clientloss), and every task here has a gradient of the form (link(z) - t) / n with respect to z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

TaskName: TypeAlias = Literal["classification", "regression"]


class Task(Protocol):
    """What heads, evaluation and reports ask of a task."""

    @property
    def metric(self) -> str:
        """Its name: history has participants_<metric> and everyone_<metric>."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger metric is a better one."""
        ...

    @property
    def curvature(self) -> float:
        """The most that the Hessian of a sample's loss with respect to z can reach."""
        ...

    def targets(self, y: Tensor, classes: Tensor, dtype: torch.dtype) -> Tensor:
        """t, (samples, outputs), from labels."""
        ...

    def known(self, targets: Tensor) -> bool:
        """Tell whether any of the samples has a loss."""
        ...

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean loss over the samples."""
        ...

    def losses(self, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute every sample's loss, 0 where it has none, and 1 where it has one, 0 elsewhere."""
        ...

    def residual(self, z: Tensor, targets: Tensor, *, dim: int = 1) -> Tensor:
        """link(z) - t, which is n times the gradient of the loss with respect to z; outputs along `dim`."""
        ...

    def scores(self, z: Tensor, targets: Tensor) -> Tensor:
        """Compute one number per sample, whose mean `metric_value` turns into the metric."""
        ...

    def metric_value(self, mean_score: float) -> float:
        """Compute the metric from the mean of the scores."""
        ...


@dataclass(frozen=True)
class Classification:
    """Softmax cross-entropy: loss = mean(logsumexp(z) - z_y), link = softmax, t = onehot(y).

    A sample whose class has no output has a row of zeros in t. It has no loss, and counts as an error.
    """

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    curvature: ClassVar[float] = 0.5

    def targets(self, y: Tensor, classes: Tensor, dtype: torch.dtype) -> Tensor:
        """onehot(y), one column per class."""
        return (y[:, None] == classes).to(dtype)

    def known(self, targets: Tensor) -> bool:
        """Tell whether any sample's class has an output."""
        return bool(targets.any())

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean cross-entropy, over the samples whose class has an output."""
        return -(functional.log_softmax(z, dim=1) * targets).sum() / targets.sum()

    def losses(self, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute every sample's cross-entropy, where its class has an output."""
        return -(functional.log_softmax(z, dim=1) * targets).sum(dim=1), targets.sum(dim=1)

    def residual(self, z: Tensor, targets: Tensor, *, dim: int = 1) -> Tensor:
        """softmax(z) - onehot(y)."""
        return torch.softmax(z, dim=dim).sub_(targets)

    def scores(self, z: Tensor, targets: Tensor) -> Tensor:
        """Score 1 where the largest output is the right one, 0 elsewhere and where outputs are no numbers."""
        right = targets.gather(1, z.argmax(dim=1, keepdim=True)).squeeze(1)
        return right.masked_fill(z.isnan().any(dim=1), 0)

    def metric_value(self, mean_score: float) -> float:
        """Return the accuracy, 0 to 1."""
        return mean_score


@dataclass(frozen=True)
class Regression:
    """Squared error: loss = mean(|z - t|^2) / 2, link = identity, t = y.

    `unit` is what 1 stands for where targets were scaled: the metric is in their own unit, the loss is not.
    """

    unit: float = 1.0

    metric: ClassVar[str] = "rmse"
    higher_is_better: ClassVar[bool] = False
    curvature: ClassVar[float] = 1.0

    def targets(self, y: Tensor, classes: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the numbers themselves, one column per output."""
        return y.reshape(len(y), -1).to(dtype)

    def known(self, targets: Tensor) -> bool:
        """Return True: any number has a loss."""
        return True

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """Compute half the mean squared distance."""
        return (z - targets).square().sum(dim=1).mean() / 2

    def losses(self, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute half of every sample's squared distance."""
        return (z - targets).square().sum(dim=1) / 2, z.new_ones(len(z))

    def residual(self, z: Tensor, targets: Tensor, *, dim: int = 1) -> Tensor:
        """z - y."""
        return z - targets

    def scores(self, z: Tensor, targets: Tensor) -> Tensor:
        """Compute the squared distance, averaged over the outputs."""
        return (z - targets).square().mean(dim=1)

    def metric_value(self, mean_score: float) -> float:
        """Compute the root mean squared error, in the unit of the targets."""
        return float(mean_score**0.5) * self.unit
