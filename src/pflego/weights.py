"""The one data structure: a flat dictionary of named tensors.

The server's weights, a client's state, an optimiser's state and a message are all of this kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum, isfinite, sqrt
from typing import TypeAlias

import torch
from torch import Tensor

Weights: TypeAlias = dict[str, Tensor]

_LINE = 64  # bytes of a cache line, where torch's own tensors begin


def master_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type weights are kept in: float32 where a model computes with half of that."""
    return torch.promote_types(dtype, torch.float32)


def is_finite(weights: Weights) -> bool:
    """Tell whether no tensor holds an infinity or a NaN."""
    # a sum is quickest to look at, but can overflow on its own
    return all(isfinite(tensor.sum()) or bool(tensor.isfinite().all()) for tensor in weights.values())


def nbytes(weights: Weights) -> int:
    """Count the bytes the tensors hold, which is what they cost on the wire."""
    return sum(tensor.nbytes for tensor in weights.values())


def aligned(tensor: Tensor) -> Tensor:
    """Give a tensor that begins where a cache line does: itself, or a copy.

    MKL chooses its loops by where operands begin, and each rounds in its own way. What comes from files, messages and
    arrays begins anywhere, and must lead to the same bits in every process.
    """
    return tensor if tensor.data_ptr() % _LINE == 0 else tensor.clone()


def weighted_sum(terms: Iterable[tuple[float, Weights]]) -> Weights:
    """Add up factor * weights, in the order given.

    >>> weighted_sum([(0.25, {"w": torch.tensor(4.0)}), (0.75, {"w": torch.tensor(8.0)})])
    {'w': tensor(7.)}
    """
    total: Weights = {}
    for factor, weights in terms:
        for name, tensor in weights.items():
            if name in total:
                total[name].add_(tensor, alpha=factor)
            else:
                total[name] = tensor * factor
    return total


def elementwise_largest(parts: Sequence[Weights]) -> Weights:
    """Take the largest of every number, name by name.

    >>> elementwise_largest([{"L": torch.tensor(1.0)}, {"L": torch.tensor(3.0)}])
    {'L': tensor(3.)}
    """
    largest: Weights = {}
    for part in parts:
        for name, tensor in part.items():
            largest[name] = torch.maximum(largest[name], tensor) if name in largest else tensor
    return largest


def plus(weights: Weights, difference: Weights) -> Weights:
    """Add a difference, name by name.

    >>> plus({"w": torch.tensor(1.0)}, {"w": torch.tensor(0.5)})
    {'w': tensor(1.5000)}
    """
    return {name: w + difference[name].to(w) for name, w in weights.items()}


def minus(weights: Weights, other: Weights) -> Weights:
    """Give the difference of weights to others of the same names.

    >>> minus({"w": torch.tensor(1.5)}, {"w": torch.tensor(1.0), "v": torch.tensor(0.0)})
    {'w': tensor(0.5000)}
    """
    return {name: w - other[name] for name, w in weights.items()}


def norm(weights: Weights) -> float:
    """Give the Euclidean norm of all tensors together, in float64.

    >>> norm({"v": torch.tensor([3.0]), "w": torch.tensor([[4.0]])})
    5.0
    """
    return sqrt(fsum(float(tensor.double().square().sum()) for tensor in weights.values()))


def step(weights: Weights, gradient: Weights, rate: float) -> Weights:
    """Take one gradient step, leaving what has no gradient as it is.

    >>> step({"w": torch.tensor(1.0)}, {"w": torch.tensor(2.0)}, 0.25)
    {'w': tensor(0.5000)}
    """
    return {name: w.sub(gradient[name], alpha=rate) if name in gradient else w for name, w in weights.items()}


def with_prefix(prefix: str, weights: Weights) -> Weights:
    """Put a prefix before every name, so that they go into one dictionary with others.

    >>> with_prefix("control/", {"w": torch.tensor(1.0)})
    {'control/w': tensor(1.)}
    """
    return {prefix + name: tensor for name, tensor in weights.items()}


def of_prefix(prefix: str, weights: Weights) -> Weights:
    """Pick the weights whose names have a prefix, by their names without it.

    >>> of_prefix("control/", {"w": torch.tensor(2.0), "control/w": torch.tensor(1.0)})
    {'w': tensor(1.)}
    """
    return {name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(prefix)}


def to(weights: Weights, device: torch.device) -> Weights:
    """Move every tensor to a device, if it is not there."""
    if device.type == "cpu" and all(tensor.is_cpu for tensor in weights.values()):
        return weights
    return {name: tensor.to(device) for name, tensor in weights.items()}
