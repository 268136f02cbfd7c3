"""Contributions as whole numbers modulo a power of two, where masks are added without a trace.

A value v becomes round(v / step), to the nearest, modulo 2^(8 width). `step` is fitted to the clip, and to noise where
there is some: the sum of all clients' values never leaves the range, however they lie. `width`, the bytes of a number,
is the smallest by which the sum errs by less than 1e-4 of its norm without noise, whatever that is down to a thousandth
of the norm that the clip allows.

Figures (losses, counts) are few and of unknown size: 64 bits each, in steps of 2^-24.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pflego.errors import UserError

Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]

ERROR = 1e-4  # of the sum's norm, at most,
SMALLEST = 1e-3  # where it is at least this part of the largest that the clip allows
_WIDTHS = range(4, 8)  # bytes: more would not fit into float64's whole numbers
_FIGURE_STEP = 2.0**-24
_FIGURE_RANGE = 2.0**62  # of a sum of figures, in steps


@dataclass(frozen=True)
class Layout:
    """How a contribution and its figures lie in a message: derived from what all know, so the same for everybody."""

    values: int  # numbers in a contribution
    figures: int  # and beside it
    parties: int  # that could be in the sum
    bound: float  # the largest absolute value that a number of the sum can have, without noise
    spread: float = 0.0  # that all clients' noise together can add to it

    @cached_property
    def width(self) -> int:
        """The bytes of a value."""
        for width in _WIDTHS:
            error = self.parties * sqrt(self.values) * self._step(width) / 2  # if all round the same way
            if error <= ERROR * SMALLEST * self.bound:
                return width
        raise UserError(f"{self.parties} clients and {self.values} weights are too many for a secure sum")

    @property
    def size(self) -> int:
        """The bytes of a masked contribution."""
        return self.values * self.width + self.figures * 8

    def encode(self, values: Floats, figures: Floats) -> Words:
        """Give numbers as words."""
        most = 2.0 ** (8 * self.width - 1)
        steps = np.rint(values / self._step(self.width)).clip(-most, most)
        limit = _FIGURE_RANGE / self.parties
        counts = np.rint(figures / _FIGURE_STEP).clip(-limit, limit)
        return np.concatenate([steps, counts]).astype(np.int64).view(np.uint64)

    def decode(self, words: Words) -> tuple[Floats, Floats]:
        """Give values and figures of a sum of words."""
        shift = np.uint64(64 - 8 * self.width)  # the sign is the highest bit of a value, not of its word
        steps = (words[: self.values] << shift).view(np.int64) >> np.int64(shift)
        counts = words[self.values :].view(np.int64)
        return steps.astype(np.float64) * self._step(self.width), counts.astype(np.float64) * _FIGURE_STEP

    def pack(self, words: Words) -> bytes:
        """Give words as bytes, of each value the lowest alone."""
        little = words.astype("<u8").view(np.uint8).reshape(-1, 8)
        return little[: self.values, : self.width].tobytes() + little[self.values :].tobytes()

    def unpack(self, data: bytes | npt.NDArray[np.uint8]) -> Words:
        """Give the words of bytes; the bits above a value's are zero, and mean nothing."""
        octets = np.frombuffer(data, np.uint8)
        split = self.values * self.width
        words = np.zeros((self.values + self.figures, 8), np.uint8)
        words[: self.values, : self.width] = octets[:split].reshape(-1, self.width)
        words[self.values :] = octets[split:].reshape(-1, 8)
        return words.view("<u8").reshape(-1).astype(np.uint64)

    def _step(self, width: int) -> float:
        # a number of the sum is off by half a step for every party, and by one more where a product rounds up
        return (self.bound + self.spread) / (2.0 ** (8 * width - 1) - 2 * self.parties)


def added(parts: Iterable[Words]) -> Words:
    """Add up words, modulo 2^64."""
    return np.asarray(np.sum(list(parts), axis=0, dtype=np.uint64))
