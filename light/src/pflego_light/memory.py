"""What of a pass through the backbone fits into a budget of memory: kept until the way back, or computed again.

Of B bytes, with N samples of c bytes of activations and f bytes of features each, s of them at a time,

    B - 4 N f - 4 |theta| - 3/2 s c        is for activations that are kept

just as a full client reckons.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

_LEAST = 4  # samples at a time, however small the budget
_NUMBER = 4  # bytes


class Kept(NamedTuple):
    """What becomes of a pass."""

    size: int  # samples at a time
    samples: int  # whose activations are kept: so many of the first


def plan(spec: Mapping[str, Any], samples: int) -> Kept:
    """Say how many samples go through the graphs at a time, and of how many the activations are kept."""
    memory, backbone = spec["memory"], spec["backbone"]
    said, usual, each = memory["slice"], memory["usual_slice"], memory["sample"]
    theta = sum(prod(one["shape"]) for one in backbone["parameters"])
    whole = Kept(said or usual or samples, samples)
    if memory["limit"] is None:
        return whole
    room = memory["limit"] - 4 * _NUMBER * (samples * backbone["features"] + theta)
    if room >= samples * each:
        return whole
    fitting = max(_LEAST, int(room / (3 * each)))
    size = min(said or min(usual or fitting, fitting), samples)
    return Kept(size, int(max(0.0, room - 1.5 * size * each) / each) // size * size)
