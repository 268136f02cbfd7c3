"""Data sets divided into federations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pflego.data import own
from pflego.data.blocks import Array, take
from pflego.data.dataset import DataSet
from pflego.data.division import Partition, divide
from pflego.data.own import Own
from pflego.data.own.pool import Pool, Reading
from pflego.data.partition import Indices
from pflego.data.problems import listed
from pflego.data.schema import Schema
from pflego.data.sets import data_set
from pflego.errors import UserError
from pflego.federation import Client, ClientId, Federation


def load(
    data: Own,
    *,
    clients: int | None = None,
    classes_per_client: int | str | None = None,
    partition: str | None = None,
    alpha: float | None = None,
    column: str | None = None,
    split: str | None = None,
    rotations: int | None = None,
    label: str | None = None,
    task: str | None = None,
    test_share: float | None = None,
    drop: Sequence[str] | None = None,
    scale: bool | None = None,
    gaps: str | None = None,
    size: int | str | None = None,
    schema: str | Path | Schema | None = None,
    ids: Sequence[ClientId] | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """Load data and give every client its own. Every sample goes to one client, every client gets some.

    Parameters
    ----------
    data
        The name of a data set (digits, diabetes, mnist, fashion-mnist, emnist, cifar10, omniglot), or data of your own:
        a CSV or Parquet file with a column of clients; a folder of CSV, Parquet or .npz files, a client a file, or
        of pictures in client/class; a .npz file with x_train, y_train, x_test and y_test; a table of pandas, polars
        or Arrow; a data set of Hugging Face's library, or {"train": ..., "test": ...} of them; a function from a
        client's id to (x, y) or to (x_train, y_train, x_test, y_test), with `ids`.
    clients
        I, how many clients share it, 20 if not said. Data that have clients of their own say it themselves.
    classes_per_client
        How many classes each client holds with partition="classes": a number, or a degree of personalisation,
        "high" (2, if not said), "medium" (half of the classes) or "none" (all).
    partition
        "classes", if not said: every client draws its classes, every class is held by somebody, and its samples
        are dealt out one at a time to the clients holding it, for training and testing alike.
        "dirichlet": every class is divided in shares drawn from a Dirichlet distribution; a client that is left
        with nothing is given one sample of the client that has most.
        "iid": all samples are dealt out one at a time, as those of a regression are if nothing is said.
        "column": a column says whose a sample is, as the alphabet does in Omniglot.
    alpha
        Of the Dirichlet distribution, 0.5 if not said: the smaller, the more clients differ.
    column
        The name of the column of client ids; in a .npz file the arrays <column>_train and <column>_test.
    split
        How a quarter of Omniglot is set aside for testing: "drawing" (if not said: 5 of 20 drawings, then all are
        rotated) or "paper" (rotated first, so that a drawing can be on both sides).
    rotations
        In how many of the rotations by 0, 90, 180 and 270 degrees a drawing of Omniglot is given, 4 if not said.
    label
        The column of labels; if not said, the one that is called label, target, y or class.
    task
        "classification" or "regression"; if not said, fractions are numbers to predict, all other labels classes.
    test_share
        The share of each client's samples that is set aside for testing, 0.2 if not said, where the data do not say
        it themselves: in a column `split` of train and test, in folders train and test, in x_test.
    drop
        Columns to leave out.
    scale
        Whether the numbers of a table are brought to mean 0 and standard deviation 1, those of all clients' training
        rows; so are the labels of a regression. True if not said.
    gaps
        What to do where values are missing: "refuse", if not said; "drop" leaves such rows out; "mean" fills numbers
        with the mean, and categories with none.
    size
        The size that pictures are resized to, 32 or "48x32"; if not said, all must have the same.
    schema
        A file that says how values become inputs (`pflego data schema`), for a site that has only data of its own.
    ids
        The clients, where data is a function.
    seed
        Decides who gets what, and what is for testing.
    data_dir
        A folder searched first, for <name>.npz or the official files; without it, the one in the environment's
        PFLEGO_DATA. What is not found is taken from the cache, or downloaded into it.

    >>> load("digits", clients=20, classes_per_client=2, seed=0)
    Federation(20 clients, 1438 training samples, 10 classes)
    >>> load(lambda ward: (np.eye(3), np.array([0, 1, 0])), ids=["north", "south"], test_share=0)
    Federation(2 clients, 6 training samples, 2 classes)
    """
    wanted = Partition(clients, classes_per_client, partition, alpha, column)
    reading = Reading(label, task, test_share, drop, scale, gaps, size, schema)
    source: dict[str, object] = {"data": str(data)} if isinstance(data, str | Path) else {}
    if own.is_own(data):
        _refuse({"split": split, "rotations": rotations, "data_dir": data_dir}, "data sets that have a name")
        pool = own.read(data, reading, column=column, ids=ids, seed=seed)
        if pool.ids is not None:
            return _with_own_clients(pool, pool.ids, wanted, {**source, "data_seed": seed})
        found, made = _undivided(pool, wanted), pool.schema
    else:
        reading.refuse_all(f"for data of your own, in tables or folders, not for {data}")
        _refuse({"ids": ids}, "a function")
        found = data_set(str(data), data_dir=data_dir, split=split, rotations=rotations, seed=seed)
        made = None
    division = divide(found, wanted, seed=seed)
    source |= {**division.settings, **found.prepared, "data_seed": seed}
    if data_dir is not None:
        source["data_dir"] = str(data_dir)
    x_train, x_test = _shares(found.x_train, division.train), _shares(found.x_test, division.test)
    y_train, y_test = _shares(found.y_train, division.train), _shares(found.y_test, division.test)
    return Federation(
        [Client(*share) for share in zip(division.ids, x_train, y_train, x_test, y_test, strict=True)],
        source=source,
        schema=made,
    )


def _with_own_clients(
    pool: Pool, ids: Sequence[ClientId], wanted: Partition, source: dict[str, object]
) -> Federation:
    """A federation of the clients that data have themselves."""
    if wanted.partition not in (None, "column") or wanted.classes_per_client or wanted.alpha:
        raise UserError(
            f"{pool.name} has clients of its own: leave partition, classes_per_client and alpha out"
        )
    if wanted.clients not in (None, len(ids)):
        raise UserError(
            f"{pool.name} has {len(ids)} clients of its own: leave clients out, or say {len(ids)}"
        )
    return Federation(
        [Client(id, *share) for id, share in zip(ids, pool.shares, strict=True)],
        source={**source, "clients": len(ids), **pool.settings},
        schema=pool.schema,
    )


def _undivided(pool: Pool, wanted: Partition) -> DataSet:
    """Data without clients, for somebody to divide; refused unless that was asked for."""
    if wanted == Partition():
        columns = listed([feature.name for feature in pool.schema.features])
        which = f" with column=... (--column), one of {columns}" if pool.schema.features else ""
        raise UserError(
            f"{pool.name}: nothing says whose a sample is: name the clients{which}, or divide it among some, "
            f"clients=20 (--clients 20)"
        )
    return DataSet(pool.name, *pool.shares[0], prepared=pool.settings)


def _refuse(settings: Mapping[str, object], owner: str) -> None:
    for name, value in settings.items():
        if value is not None:
            raise UserError(f"{name} is for {owner}: leave it out")


def _shares(array: Array, parts: Sequence[Indices]) -> list[Array]:
    """Each client's rows, as pieces of one array: the samples of all clients are in memory once."""
    ends = np.cumsum([len(own) for own in parts])
    return np.split(take(array, np.concatenate(parts)), ends[:-1])
