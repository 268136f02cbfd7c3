"""How much a client's loss can curve in its head, the mean of the features apart.

With Phi, (n, M + 1), the features and a column of ones, m the mean of its rows, C their covariance and c as in
theory.py,

    Phi^T Phi / n  =  m m^T + C

so the Hessian of the loss in a linear head, a decay included, is nowhere above

    H  =  a I + c m m^T        in every row,        a = c lambda_max(C) + decay

and W <- W - grad H^-1 goes downhill wherever it starts, as a step of 1/L does. L is about a + c |m|^2. Features of a
network that has not learned yet are nearly the same for all samples: c |m|^2 is then thousands of times a, and steps of
1/L leave what tells classes apart where it is. Since

    H^-1  =  1/a (I - share m m^T),        share = c / (a + c |m|^2)

a step of H^-1 is one of rate 1/a along a gradient that has lost a share of its part along m. Where samples have
weights, m and C are the weighted ones.

A backbone that has learned nothing yet tells samples apart by next to nothing: a head that is fitted to that in full
grows large, and is wrong as soon as the backbone moves. So a is taken to be at least a hundredth of c |m|^2; H is
then larger, and still a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pflego.learning.heads.rules import Descent
from pflego.learning.task import Task
from pflego.learning.theory import best_rate, head_smoothness, mean_row
from pflego.weights import Weights

LEAST_SPREAD = 0.01  # of c |m|^2, taken for the spread where that is smaller: steps are at most 100 times 1/L


@dataclass(frozen=True)
class HessianBound:
    """constant I + weight mean mean^T, in every row of a head."""

    constant: float
    mean: Tensor | None = None  # (M + 1,)
    weight: float = 0.0

    @property
    def largest(self) -> float:
        """An upper bound of the largest eigenvalue: the smoothness constant L_i where there is no mean."""
        return self.constant + (0.0 if self.mean is None else self.weight * float(self.mean @ self.mean))

    def descent(self, decay: float = 0.0, anchor: Weights | None = None) -> Descent:
        """Give steps of H^-1, a decay included."""
        share = self.weight / (self.largest + decay) if self.weight else 0.0
        rate = best_rate(self.constant + decay)
        return Descent(rate, decay=decay, anchor=anchor, mean=self.mean, share=share)


def centred_bound(mean: Tensor, constant: float, curvature: float) -> HessianBound:
    """Give the bound from m, c lambda_max(C) and c."""
    least = LEAST_SPREAD * curvature * float(mean @ mean)
    return HessianBound(max(constant, least), mean, curvature)


def bound_of_features(features: Tensor, task: Task, weights: Tensor | None = None) -> HessianBound:
    """Give the bound for features, (samples, M), whose samples may have weights, (samples,).

    >>> import torch
    >>> from pflego.learning.task import Regression
    >>> bound = bound_of_features(torch.tensor([[4.0], [6.0]]), Regression())
    >>> round(bound.constant, 3), round(bound.largest, 3)
    (1.0, 27.0)
    """
    mean = mean_row(features, weights)
    return centred_bound(mean, head_smoothness(features, task, weights, mean=mean), task.curvature)
