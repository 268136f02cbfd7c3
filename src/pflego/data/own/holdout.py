"""Which of a client's samples are for testing, and all samples in the order of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pflego.data.blocks import Array
from pflego.data.partition import Indices, by_owner
from pflego.federation.roster import ClientId
from pflego.randomness import numpy_generator

Mask: TypeAlias = npt.NDArray[np.bool_]
Share: TypeAlias = tuple[Array, Array, Array, Array]  # a client's x_train, y_train, x_test, y_test

TEST_SHARE = 0.2


@dataclass(frozen=True)
class Order:
    """Samples client by client, those for training before those for testing."""

    rows: Indices  # the samples in this order
    test: Mask  # whether each, in this order, is for testing
    ends: Indices  # where each client's training samples end, then its test samples, then the next client's

    @property
    def untrained(self) -> int | None:
        """The first client without a training sample; None: there is no such."""
        empty = np.flatnonzero(self.ends[::2] == np.concatenate([[0], self.ends[1::2][:-1]]))
        return int(empty[0]) if len(empty) else None

    def shares(self, x: Array, y: Array) -> list[Share]:
        """Split arrays that are in this order into each client's parts. Nothing is copied."""
        xs, ys = np.split(x, self.ends[:-1]), np.split(y, self.ends[:-1])
        return list(zip(xs[::2], ys[::2], xs[1::2], ys[1::2], strict=True))

    def training(self, values: Array) -> list[Array]:
        """Split values that are in this order into those of each client's training samples."""
        return np.split(values, self.ends[:-1])[::2]


def held_out(kinds: Indices, share: float, *, seed: int, client: ClientId) -> Mask:
    """Draw a client's test samples: a share of them, as nearly as can be the same of every kind.

    Every kind keeps a sample to learn from, so that a client of few samples may be left with none to test.
    """
    names, places, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    wanted = min(int(len(kinds) * share + 0.5), len(kinds) - len(names))
    exact = np.minimum(counts * share, counts - 1)
    quota = exact.astype(np.int64)
    generator = numpy_generator(seed, "hold out", client=client)
    shuffled = generator.permutation(len(kinds))
    luck = generator.permutation(len(names))  # decides between kinds that are equally near to one more
    while (short := wanted - quota.sum()) > 0:
        room = np.flatnonzero(quota < counts - 1)
        nearest = room[np.lexsort((luck[room], quota[room] - exact[room]))]
        quota[nearest[:short]] += 1
    by_kind = shuffled[np.argsort(places[shuffled], kind="stable")]
    rank = np.arange(len(kinds)) - np.repeat(np.cumsum(counts) - counts, counts)
    test = np.zeros(len(kinds), bool)
    test[by_kind[rank < np.repeat(quota, counts)]] = True
    return test


def arrange(
    owners: Indices,
    ids: Sequence[ClientId],
    kinds: Indices,
    *,
    test: Mask | None,
    share: float,
    seed: int,
) -> Order:
    """Put samples in the order of their owners; where nothing says which are for testing, draw a share."""
    rows, tests, ends = [], [], []
    for client_id, own in zip(ids, by_owner(owners, len(ids)), strict=True):
        for_test = test[own] if test is not None else held_out(kinds[own], share, seed=seed, client=client_id)
        rows += [own[~for_test], own[for_test]]
        tests += [np.sort(for_test)]
        ends += [len(own) - int(for_test.sum()), int(for_test.sum())]
    return Order(np.concatenate(rows), np.concatenate(tests), np.cumsum(ends))
