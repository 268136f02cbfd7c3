"""A client's budget of memory, and what of a pass through the backbone fits into it.

Activations are what a pass needs most of: they wait for the way back until the head's steps are done. What fits is
kept; the rest is thrown away and computed again, slice by slice, for a part of a second forward pass. The gradient is
the same.

Of a budget B in bytes, with N samples of c bytes of activations each, features of f bytes each, and s samples that go
through the backbone at a time,

    B - 4 N f - 4 |theta| - 3/2 s c      is for activations that are kept

since features and their gradient, gradients and their sum, and the slice at hand need room besides. Where they would
need more than half of it, slices are smaller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from pflego.errors import SettingError
from pflego.weights import Weights

_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_LEAST = 4  # samples that go through the backbone at a time, however small the budget


@dataclass(frozen=True)
class Memory:
    """How many bytes a client may take up while it works."""

    limit: float = inf

    def plan(
        self, samples: int, each: int, features: int, theta: int, usual: int | None, said: int | None = None
    ) -> Kept:
        """Say how many samples go through the backbone at a time, and of how many the activations are kept.

        Parameters
        ----------
        samples
            How many there are.
        each, features, theta
            Bytes of a sample's activations and of its features, and of all weights.
        usual
            Samples at a time that are fastest; None: all.
        said
            Samples at a time, if somebody decided that.
        """
        room = self.limit - 4 * samples * features - 4 * theta
        if room >= samples * each:
            return Kept(said or usual, samples)
        fitting = max(_LEAST, int(room / (3 * each)))
        size = min(said or min(usual or fitting, fitting), samples)
        return Kept(size, int(max(0.0, room - 1.5 * size * each) / each) // size * size)


@dataclass(frozen=True)
class Kept:
    """What becomes of a pass."""

    size: int | None  # samples at a time; None: all at once
    samples: int  # whose activations are kept: so many of the first


def memory_of(given: str | float) -> Memory:
    """Read a budget: 256MB, 1.5GB, a number of bytes, or unlimited.

    >>> memory_of("256MB"), memory_of(1.5e9).limit, memory_of("unlimited").limit
    (Memory(limit=256000000.0), 1500000000.0, inf)
    """
    text = str(given).strip()
    if text.lower() == "unlimited":
        return Memory()
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?) ?([KMGT]?B)?", text, re.IGNORECASE)
    if isinstance(given, bool) or found is None:
        raise SettingError(
            f"memory must be a size like 256MB or 1GB, a number of bytes, or unlimited, not {given!r}"
        )
    return Memory(float(found[1]) * _UNITS[(found[2] or "").upper()])


class Activations:
    """Counts the bytes that autograd holds for the way back, of a few samples."""

    def __init__(self, weights: Weights) -> None:
        self._seen = {w.untyped_storage().data_ptr() for w in weights.values()}
        self.total = 0

    def __enter__(self) -> Activations:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor
