"""Data sets divided into federations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflego.data.blocks import Array, take
from pflego.data.division import Partition, divide
from pflego.data.partition import Indices
from pflego.data.sets import data_set
from pflego.federation import Client, Federation


def load(
    data: str | Path,
    *,
    clients: int | None = None,
    classes_per_client: int | str | None = None,
    partition: str | None = None,
    alpha: float | None = None,
    column: str | None = None,
    split: str | None = None,
    rotations: int | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """Load a data set and divide it among clients. Every sample goes to one client, every client gets some.

    Parameters
    ----------
    data
        The name of a data set (digits, diabetes, mnist, fashion-mnist, emnist, cifar10, omniglot) or the path of a
        .npz file with x_train, y_train, x_test and y_test.
    clients
        I, how many clients share it, 20 if not said. A column says it itself.
    classes_per_client
        How many classes each client holds with partition="classes": a number, or a degree of personalisation,
        "high" (2, if not said), "medium" (half of the classes) or "none" (all).
    partition
        "classes", if not said: every client draws its classes, every class is held by somebody, and its samples
        are dealt out one at a time to the clients holding it, for training and testing alike.
        "dirichlet": every class is divided in shares drawn from a Dirichlet distribution; a client that is left
        with nothing is given one sample of the client that has most.
        "iid": all samples are dealt out one at a time, as those of a regression are if nothing is said.
        "column": a column of the .npz file says whose a sample is, as the alphabet does in Omniglot.
    alpha
        Of the Dirichlet distribution, 0.5 if not said: the smaller, the more clients differ.
    column
        The name of the column: the file holds <column>_train and <column>_test, client ids.
    split
        How a quarter of Omniglot is set aside for testing: "drawing" (if not said: 5 of 20 drawings, then all are
        rotated) or "paper" (rotated first, so that a drawing can be on both sides).
    rotations
        In how many of the rotations by 0, 90, 180 and 270 degrees a drawing of Omniglot is given, 4 if not said.
    seed
        Decides who gets what.
    data_dir
        A folder searched first, for <name>.npz or the official files; without it, the one in the environment's
        PFLEGO_DATA. What is not found is taken from the cache, or downloaded into it.

    >>> load("digits", clients=20, classes_per_client=2, seed=0)
    Federation(20 clients, 1438 training samples, 10 classes)
    """
    wanted = Partition(clients, classes_per_client, partition, alpha, column)
    found = data_set(str(data), data_dir=data_dir, split=split, rotations=rotations, seed=seed)
    division = divide(found, wanted, seed=seed)
    source = {"data": str(data), **division.settings, **found.prepared, "data_seed": seed}
    if data_dir is not None:
        source["data_dir"] = str(data_dir)
    x_train, x_test = _shares(found.x_train, division.train), _shares(found.x_test, division.test)
    y_train, y_test = _shares(found.y_train, division.train), _shares(found.y_test, division.test)
    return Federation(
        [Client(*own) for own in zip(division.ids, x_train, y_train, x_test, y_test, strict=True)],
        source=source,
    )


def _shares(array: Array, parts: Sequence[Indices]) -> list[Array]:
    """Each client's rows, as pieces of one array: the samples of all clients are in memory once."""
    ends = np.cumsum([len(own) for own in parts])
    return np.split(take(array, np.concatenate(parts)), ends[:-1])
