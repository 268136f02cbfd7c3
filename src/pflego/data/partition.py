"""Who gets which samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pflego.errors import UserError
from pflego.randomness import numpy_generator

Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]


def draw_classes(classes: int, clients: int, classes_per_client: int, *, seed: int) -> list[Indices]:
    """Draw each client's classes without replacement, so that every class is held by somebody.

    A class nobody drew takes the place of one that others hold too.
    """
    if not 1 <= classes_per_client <= classes:
        raise UserError(
            f"classes_per_client must be from 1 to {classes}, the classes there are, not {classes_per_client}"
        )
    if clients * classes_per_client < classes:
        raise UserError(
            f"{clients} clients with {classes_per_client} classes each cannot hold all {classes} classes: "
            f"take more clients or more classes_per_client"
        )
    generator = numpy_generator(seed, "classes")
    drawn = [generator.choice(classes, classes_per_client, replace=False) for _ in range(clients)]
    held = np.bincount(np.concatenate(drawn), minlength=classes)
    for missing in np.flatnonzero(held == 0):
        givers = [(i, j) for i, own in enumerate(drawn) for j, c in enumerate(own) if held[c] > 1]
        client, slot = givers[generator.integers(len(givers))]
        held[drawn[client][slot]] -= 1
        held[missing] += 1
        drawn[client][slot] = missing
    return [np.sort(own) for own in drawn]


def round_robin(labels: Labels, held: Sequence[Indices], *, seed: int, purpose: str) -> list[Indices]:
    """Deal the samples of every class, shuffled, one at a time to the clients holding it.

    `labels` are positions of classes, `held` the classes each client holds; gives each client's sample indices.
    """
    dealt: list[list[Indices]] = [[] for _ in held]
    for c in range(1 + max(int(own.max()) for own in held)):
        generator = numpy_generator(seed, purpose, client=c)
        samples = generator.permutation(np.flatnonzero(labels == c))
        holders = [client for client, own in enumerate(held) if c in own]
        for turn, client in enumerate(holders):
            dealt[client].append(samples[turn :: len(holders)])
    return [np.sort(np.concatenate(parts)) for parts in dealt]


def iid(samples: int, clients: int, *, seed: int, purpose: str) -> list[Indices]:
    """Deal shuffled samples one at a time to all clients."""
    order = numpy_generator(seed, purpose).permutation(samples)
    return [np.sort(order[client::clients]) for client in range(clients)]
