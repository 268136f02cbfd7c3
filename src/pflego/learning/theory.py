"""What the paper's theory says about rates, and the constants it needs.

A function with smoothness constant L falls with every gradient step of a rate below 2/L, and a rate of 1/L is
the best that L alone can promise. For a client's head, with the features Phi_i of its N_i samples and a last
column of ones,

    L_i = c lambda_max(Phi_i^T Phi_i / N_i)        c = 1/2 for the softmax, 1 for half the squared error

holds everywhere, since the Hessian of one sample's loss with respect to its outputs never exceeds c. Where samples have
weights w of mean 1 (weighted.py), Phi_i^T diag(w) Phi_i takes the place of Phi_i^T Phi_i. For the
backbone, or a head that is not linear, L is measured where the weights are, by power iteration on
Hessian-vector products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import floor, inf, sqrt
from typing import TypeAlias

import torch
from torch import Tensor

from pflego.learning.task import Task
from pflego.weights import Weights, weighted_sum

Part: TypeAlias = Callable[[Weights], Tensor]

ITERATIONS = 12  # of the power method: from a random start, enough to be within a factor of 2 of lambda_max


def power_iteration(
    apply: Callable[[Weights], Weights],
    like: Weights,
    iterations: int = ITERATIONS,
    tolerance: float = 0.0,
) -> float:
    """Estimate the largest eigenvalue, by magnitude, of a symmetric operator; never above the true one.

    It ends after so many iterations, or before, when one adds no more than this share to the estimate.

    >>> scales = torch.tensor([3.0, 1.0, 0.5])
    >>> round(power_iteration(lambda v: {"w": scales * v["w"]}, {"w": torch.zeros(3)}), 4)
    3.0
    """
    generator = torch.Generator().manual_seed(0)
    vector = {
        k: torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w.device) for k, w in like.items()
    }
    size = _norm(vector)
    value = 0.0
    for _ in range(iterations):
        if size == 0.0:
            break
        vector = apply({name: tensor / size for name, tensor in vector.items()})
        before, value = value, _norm(vector)
        size = value
        if tolerance and value - before <= tolerance * value:
            break
    return value


def head_smoothness(
    features: Tensor,
    task: Task,
    weights: Tensor | None = None,
    iterations: int = ITERATIONS,
    *,
    mean: Tensor | None = None,
) -> float:
    """L_i of a linear head on features, (samples, M), its bias included; samples may have weights, (samples,).

    With a mean, (M + 1,), that is taken off all rows of Phi first.

    >>> from pflego.learning.task import Regression
    >>> round(head_smoothness(torch.tensor([[2.0], [-2.0]]), Regression()), 4)
    4.0
    """
    n, width = features.shape
    vector = first_vector(width + 1).to(features)
    size = torch.linalg.vector_norm(vector)
    for _ in range(iterations):
        if not size:
            break
        vector = vector / size
        offset = vector[-1] if mean is None else vector[-1] - vector @ mean
        z = torch.addmv(offset.expand(n), features, vector[:-1])  # (n,)
        z = z if weights is None else z * weights
        vector = torch.cat([features.T @ z, z.sum()[None]]) / n  # Phi^T Phi v / n
        size = torch.linalg.vector_norm(vector)
    return task.curvature * float(size)


def mean_row(features: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the mean of the rows of Phi, (M + 1,), from features, (samples, M); the last entry is 1.

    >>> mean_row(torch.tensor([[2.0], [4.0]]), torch.tensor([0.5, 1.5]))
    tensor([3.5000, 1.0000])
    """
    mean = features.mean(dim=0) if weights is None else weights.to(features) @ features / len(features)
    return torch.cat([mean, mean.new_ones(1)])


def expected_smoothness(mean: float, largest: float, samples: int, batch: int) -> float:
    """L of steps along the gradients of mini-batches, drawn without replacement.

    `mean` is the constant of the mean over all samples, `largest` that of the roughest of them. Between a full batch
    and single samples it goes from one to the other: n (b - 1) / (b (n - 1)) mean + (n - b) / (b (n - 1)) largest
    (Gower et al., 2019).

    >>> [expected_smoothness(1.0, 9.0, 5, batch) for batch in (5, 1)]
    [1.0, 9.0]
    """
    n, b = samples, batch
    return n * (b - 1) / (b * (n - 1)) * mean + (n - b) / (b * (n - 1)) * largest


@cache
def first_vector(width: int) -> Tensor:
    """Draw the vector the power method starts from: at random, but always the same."""
    return torch.randn(width, generator=torch.Generator().manual_seed(0))


def smoothness(
    parts: Sequence[Part], weights: Weights, iterations: int = ITERATIONS, tolerance: float = 0.0
) -> float:
    """L of any twice differentiable loss where the weights are: the largest curvature there.

    The loss is the sum of its parts, and only one part's graph is held at a time.
    """
    if not weights:
        return 0.0
    weights = dict(sorted(weights.items()))  # a state from a file has its names in another order
    return power_iteration(
        lambda vector: hessian_product(parts, weights, vector), weights, iterations, tolerance
    )


def hessian_product(parts: Sequence[Part], weights: Weights, vector: Weights) -> Weights:
    """Multiply a vector by the Hessian of a loss, the sum of its parts, where the weights are.

    >>> weights, vector = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, 0.0])}
    >>> hessian_product([lambda x: x["w"].prod(), lambda x: x["w"].square().sum()], weights, vector)
    {'w': tensor([2., 1.])}
    """
    return weighted_sum((1, _part_product(part, weights, vector)) for part in parts)


def _part_product(part: Part, weights: Weights, vector: Weights) -> Weights:
    point = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
    parameters = list(point.values())
    slopes = torch.autograd.grad(part(point), parameters, create_graph=True, materialize_grads=True)
    along = sum((slope * vector[name]).sum() for name, slope in zip(point, slopes, strict=True))
    if not (isinstance(along, Tensor) and along.requires_grad):
        return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    return dict(zip(point, torch.autograd.grad(along, parameters, materialize_grads=True), strict=True))


def best_rate(smoothness: float) -> float:
    """1/L, the rate that promises most; 0 where the loss is flat and there is nowhere to go."""
    return 1 / smoothness if smoothness else 0.0


def client_bound(smoothness: float) -> float:
    """Proposition 2: beta must stay below 2/L."""
    return 2 / smoothness if smoothness else inf


def server_bound(smoothness: float, *, scale: float) -> float:
    """Proposition 2: rho must stay below 2/L r/I; `scale` is I/r."""
    return client_bound(smoothness) / scale


def corollary_rate(smoothness: float, *, expected: float, clients: int, rounds: int) -> float:
    """Corollary 1: rho = 1/L sqrt(r / (T I)) gives a rate of O(sqrt(I / T)), O(1 / sqrt(T)) with everyone."""
    return sqrt(expected / (rounds * clients)) / smoothness


def corollary_bound(
    smoothness: float,
    *,
    expected: float,
    clients: int,
    rounds: int,
    largest_gradient: float,
    to_lose: float,
) -> float:
    """Compute what Corollary 1 promises of the mean squared gradient norm over T rounds at its rate.

    That is 1/sqrt(T) (L sqrt(I/r) (L(theta_0) - L*) + G^2 (I + r) / (2 sqrt(I r))), `to_lose` being L(theta_0) - L*.

    >>> corollary_bound(2.0, expected=4, clients=4, rounds=100, largest_gradient=3.0, to_lose=1.5)
    1.2
    """
    start = smoothness * sqrt(clients / expected) * to_lose
    noise = largest_gradient**2 * (clients + expected) / (2 * sqrt(clients * expected))
    return (start + noise) / sqrt(rounds)


def smallest_cohort(clients: int, rounds: int) -> int:
    """Compute the smallest whole r for which Corollary 1's rho obeys Proposition 2: floor(I / 4T) + 1.

    >>> smallest_cohort(100, 10)
    3
    """
    return floor(clients / (4 * rounds)) + 1


def _norm(vector: Weights) -> float:
    return float(torch.stack([tensor.double().square().sum() for tensor in vector.values()]).sum().sqrt())
