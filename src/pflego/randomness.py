"""Every random draw as a function of (seed, purpose, round, client).

No generator lives longer than the draw it was made for. So a run does not depend on where client work is
done, on the order of clients, or on when it was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch


def entropy(seed: int, purpose: str, *, round_number: int = 0, client: object = "") -> int:
    """Derive 127 bits that differ whenever any argument does."""
    key = "\0".join([str(seed), purpose, str(round_number), str(client)])
    return int.from_bytes(blake2b(key.encode(), digest_size=16).digest(), "big") >> 1


def numpy_generator(
    seed: int, purpose: str, *, round_number: int = 0, client: object = ""
) -> np.random.Generator:
    """Give the generator for draws of indices: cohorts, partitions, splits."""
    return np.random.default_rng(entropy(seed, purpose, round_number=round_number, client=client))


def torch_generator(
    seed: int, purpose: str, *, round_number: int = 0, client: object = ""
) -> torch.Generator:
    """Give the generator for draws of weights."""
    return torch.Generator().manual_seed(
        entropy(seed, purpose, round_number=round_number, client=client) >> 64
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch's own generator, from which layers draw their weights, begin at a seed; afterwards it is as it was.

    It is the CPU's: `torch.manual_seed` would also set the seed that other kinds of device begin with, and write down
    the stack for each of them, every time.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
