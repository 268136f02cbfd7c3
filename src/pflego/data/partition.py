"""Who gets which samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pflego.errors import DataError
from pflego.federation.roster import ClientId
from pflego.randomness import numpy_generator

Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]
Column = npt.NDArray[np.generic]


def draw_classes(classes: int, clients: int, classes_per_client: int, *, seed: int) -> list[Indices]:
    """Draw each client's classes without replacement, so that every class is held by somebody.

    A class nobody drew takes the place of one that others hold too.
    """
    _check_classes(classes, clients, classes_per_client)
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


def consecutive_classes(classes: int, clients: int, classes_per_client: int) -> list[Indices]:
    """Give the first clients the first classes, the next clients the next ones, and so on; nothing is drawn.

    Where classes do not come out even, the last clients hold the last ones, some of which others hold too.

    >>> [own.tolist() for own in consecutive_classes(classes=5, clients=6, classes_per_client=2)]
    [[0, 1], [0, 1], [2, 3], [2, 3], [3, 4], [3, 4]]
    """
    _check_classes(classes, clients, classes_per_client)
    blocks = -(-classes // classes_per_client)
    firsts = [client * blocks // clients * classes_per_client for client in range(clients)]
    return [min(first, classes - classes_per_client) + np.arange(classes_per_client) for first in firsts]


def _check_classes(classes: int, clients: int, classes_per_client: int) -> None:
    if not 1 <= classes_per_client <= classes:
        raise DataError(
            f"classes_per_client must be from 1 to {classes}, the classes there are, not {classes_per_client}"
        )
    if clients * classes_per_client < classes:
        raise DataError(
            f"{clients} clients with {classes_per_client} classes each cannot hold all {classes} classes: "
            f"take more clients or more classes_per_client"
        )


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


def dirichlet(
    labels: Labels, clients: int, alpha: float, *, seed: int, capped: bool = False
) -> list[Indices]:
    """Divide every class in shares drawn from a Dirichlet distribution: the smaller alpha, the more unequal.

    Capped, who has an even share of all samples gets nothing of the classes that follow. A client that is left with
    nothing is given a sample, drawn from those of the client that has most.
    """
    classes = 1 + int(labels.max())
    shares = np.stack(
        [
            numpy_generator(seed, "dirichlet", client=c).dirichlet(np.full(clients, alpha))
            for c in range(classes)
        ]
    )
    if not np.isfinite(shares).all():
        raise DataError(f"alpha = {alpha:g} is beyond what can be drawn: take one from 1e-3 to 1e3")
    if capped:
        shares = _capped(shares, np.bincount(labels))
    dealt = in_shares(labels, shares, seed=seed, purpose="train")
    generator = numpy_generator(seed, "left with nothing")
    for client in range(clients):
        if len(dealt[client]) == 0:
            giver = max(range(clients), key=lambda other: len(dealt[other]))
            if len(dealt[giver]) < 2:
                break
            given = generator.integers(len(dealt[giver]))
            dealt[client] = dealt[giver][given : given + 1]
            dealt[giver] = np.delete(dealt[giver], given)
    return dealt


def _capped(shares: npt.NDArray[np.float64], sizes: Indices) -> npt.NDArray[np.float64]:
    """Take shares (classes, clients) from clients that have an even share of all samples when a class's turn comes."""
    even, held = sizes.sum() / shares.shape[1], np.zeros(shares.shape[1])
    left = []
    for share, size in zip(shares, sizes, strict=True):
        below = held < even
        own = share * below
        own = own / own.sum() if own.sum() > 0 else below / below.sum()  # who drew all of it has enough
        held += size * own
        left.append(own)
    return np.stack(left)


def shards(labels: Labels, clients: int, each: int, *, seed: int) -> list[Indices]:
    """Sort samples by class, cut them in equal shards, and deal every client the same number of them at random.

    H. B. McMahan and others, 2017, divide MNIST so: most clients have samples of `each` classes at most.
    """
    if clients * each > len(labels):
        raise DataError(
            f"{len(labels)} samples cannot be cut in {clients} x {each} shards: take fewer clients or shards"
        )
    generator = numpy_generator(seed, "shards")
    shuffled = generator.permutation(len(labels))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(ordered, clients * each)
    dealt = generator.permutation(len(pieces)).reshape(clients, each)
    return [np.sort(np.concatenate([pieces[k] for k in own])) for own in dealt]


def unequal(samples: int, clients: int, alpha: float, *, seed: int) -> list[Indices]:
    """Deal shuffled samples in shares drawn from a Dirichlet distribution: the smaller alpha, the more unequal.

    Every client has one before any has more.
    """
    drawn = numpy_generator(seed, "quantity").dirichlet(np.full(clients, alpha))
    if not np.isfinite(drawn).all():
        raise DataError(f"alpha = {alpha:g} is beyond what can be drawn: take one from 1e-3 to 1e3")
    return by_quantity(samples, drawn, least=1, seed=seed, purpose="train")


def by_quantity(
    samples: int, shares: npt.NDArray[np.float64], *, least: int, seed: int, purpose: str
) -> list[Indices]:
    """Deal shuffled samples in given shares, at least so many to each."""
    spare = samples - least * len(shares)
    ends = np.rint(spare * np.cumsum(shares) / shares.sum()).astype(np.int64)
    ends += least * np.arange(1, len(shares) + 1)
    order = numpy_generator(seed, purpose).permutation(samples)
    return [np.sort(own) for own in np.split(order, ends[:-1])]


def in_shares(labels: Labels, shares: npt.NDArray[np.float64], *, seed: int, purpose: str) -> list[Indices]:
    """Divide the samples of every class, shuffled, in the shares (classes, clients) of the clients."""
    clients = shares.shape[1]
    dealt: list[list[Indices]] = [[] for _ in range(clients)]
    for c, share in enumerate(shares):
        samples = numpy_generator(seed, purpose, client=c).permutation(np.flatnonzero(labels == c))
        ends = np.rint(len(samples) * np.cumsum(share) / share.sum()).astype(np.int64)
        for client, own in enumerate(np.split(samples, ends[:-1])):
            dealt[client].append(own)
    return [np.sort(np.concatenate(parts)) for parts in dealt]


def by_column(train: Column, test: Column) -> tuple[list[ClientId], list[Indices], list[Indices]]:
    """Give every sample to the client that its column names: the ids in order, and the samples of each."""
    ids, owners = np.unique(train, return_inverse=True)
    if len(strangers := np.setdiff1d(test, ids)):
        raise DataError(
            f"client {strangers[0].item()!r} has test samples but none to train on: leave its samples out"
        )
    return ids.tolist(), by_owner(owners, len(ids)), by_owner(np.searchsorted(ids, test), len(ids))


def by_owner(owners: Indices, clients: int) -> list[Indices]:
    """List the positions of each client's samples, ascending, from the number of each sample's owner."""
    ends = np.cumsum(np.bincount(owners, minlength=clients))
    return np.split(np.argsort(owners, kind="stable"), ends[:-1])
