"""Data sets divided into federations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from numbers import Integral
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from pflego.data import named_tables, own
from pflego.data.blocks import Array, take
from pflego.data.dataset import DataSet, Preparation
from pflego.data.division import Partition, PartitionName, divide, staying
from pflego.data.named_tables import TABLES
from pflego.data.own import Own
from pflego.data.own.pool import Gaps, Pool, Reading
from pflego.data.partition import Indices
from pflego.data.problems import listed
from pflego.data.schema import Schema
from pflego.data.sets import data_set
from pflego.data.sets.catalogue import KNOWN
from pflego.data.shift import Shift, ShiftName
from pflego.declaration import InPython, Limits, Positive, Probability, Whole, check_arguments
from pflego.errors import DataError, SettingError, shortened
from pflego.federation.roster import Client, ClientId, Federation
from pflego.learning.task import TaskName


def load(
    data: Own,
    *,
    clients: Whole | None = None,
    classes_per_client: Annotated[int | Literal["high", "medium", "none"] | None, Limits(above=0)] = None,
    partition: PartitionName | None = None,
    alpha: Positive | None = None,
    column: str | None = None,
    shift: ShiftName | None = None,
    groups: Whole | None = None,
    label_noise: Probability | None = None,
    split: Literal["drawing", "paper"] | None = None,
    rotations: Annotated[int | None, Limits(least=1, most=4)] = None,
    window: Whole | None = None,
    minimum: Whole | None = None,
    label: str | None = None,
    task: TaskName | None = None,
    test_share: Probability | None = None,
    drop: Sequence[str] | None = None,
    category: Sequence[str] | None = None,
    ordered: Sequence[str] | None = None,
    date: Sequence[str] | None = None,
    weight: str | None = None,
    scale: bool | None = None,
    gaps: Gaps | None = None,
    size: int | str | None = None,
    schema: str | Path | Schema | None = None,
    leave_out: Sequence[str] | None = None,
    ids: Annotated[Sequence[ClientId] | None, InPython] = None,
    seed: Annotated[int, InPython] = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """Load data and give every client its own. Every sample goes to one client, every client gets some.

    Parameters
    ----------
    data
        The name of a data set (digits, diabetes, mnist, fashion-mnist, emnist, cifar10, omniglot), or of a federation
        whose clients are real (watch, heart, schools, schools-hsb82, shakespeare), or data of your own:
        a CSV or Parquet file with a column of clients; a folder of CSV, Parquet or .npz files, a client a file, or
        of pictures in client/class; a .npz file with x_train, y_train, x_test and y_test; a table of pandas, polars
        or Arrow; a data set of Hugging Face's library, or {"train": ..., "test": ...} of them; a function from a
        client's id to (x, y) or to (x_train, y_train, x_test, y_test), with `ids`.
    clients
        I, how many clients share the data; 20 if not given. Data that have clients of their own say it themselves.
    classes_per_client
        Classes each client holds: a number, high (2, if not given), medium (half of them) or none (all). Fewer make
        clients more different; for the partitions classes, consecutive and shards.
    partition
        Who gets what: by classes (if not given), consecutive, shards, dirichlet, dirichlet-capped, quantity, iid or by
        a column.
        "classes": every client draws its classes, every class is held by somebody, and its samples are dealt out one
        at a time to the clients holding it, for training and testing alike.
        "consecutive": the same, but nothing is drawn; the first clients hold the first classes, the next clients the
        next ones, and so on.
        "shards": samples are sorted by class and cut in equal shards, of which each client gets classes_per_client.
        "dirichlet": every class is divided in shares drawn from a Dirichlet distribution; a client that is left
        with nothing is given one sample of the client that has most.
        "dirichlet-capped": the same, class by class, but who has an even share of all samples already gets nothing of
        the classes that follow.
        "quantity": all samples are dealt out whatever their class, in shares drawn from a Dirichlet distribution.
        "iid": all samples are dealt out one at a time, as those of a regression are if nothing is given.
        "column": a column says whose a sample is, as the alphabet does in Omniglot.
    alpha
        Of dirichlet, dirichlet-capped and quantity, 0.5 if not given: the smaller, the more clients differ.
    column
        Column that names the clients; in a .npz file, the arrays <column>_train and <column>_test. Of watch, person (if
        not given) or side, which makes two clients of a person.
    shift
        What makes clients different beside who holds what: rotation, permutation, inversion, contrast or labels.
        "rotation": images are turned by group / groups of a full turn; "permutation": pixels in an order of the group's
        own; "inversion": bright for dark in every other group; "contrast": from full to a fifth; "labels": the same
        inputs have other classes' names, drawn for each group but the first.
    groups
        How many groups of clients a shift tells apart, drawn at random and even in size; every client by itself, if not
        given.
    label_noise
        Share of each client's training labels that are replaced by another of its classes.
    split
        How omniglot's test images are set aside: by drawing (if not given), or as in the paper, which leaks.
        "drawing": 5 of 20 drawings, then all are rotated; "paper": rotated first, so that a drawing can be on both
        sides.
    rotations
        In how many rotations omniglot's drawings are given, 4 if not given: by 0, 90, 180 and 270 degrees.
    window
        How long a sample is: 100 moments of watch's series, or 80 characters of shakespeare, if not given.
    minimum
        How many characters a role of shakespeare must have to be a client, 10,000 if not given.
    label
        Column of labels; if not given, the one that is called label, target, y or class.
    task
        What is learned; if not given, fractions are numbers to predict, and all other labels are classes.
    test_share
        Share of each client's samples for testing, 0.2 if not given, where the data do not say it themselves: in a
        column `split` of train and test, in folders train and test, in x_test.
    drop
        Columns to leave out; on the command line, any number of times.
    category
        Columns of codes: every value is a category, though it is a number; any number of times.
    ordered
        Columns whose texts have an order, column=least<...<most; any number of times. Each becomes its position, a
        number like any other: "size=small<medium<large".
    date
        Columns of dates, which become days since 1970, a number like any other; any number of times.
    weight
        Column of weights, numbers from 0 on: how much each training row counts; all alike, if not given. In .npz files,
        the array of this name, or <weight>_train. A client's loss is the weighted mean, and clients that count by
        samples count by the sums of their weights. Tests count every row alike.
    scale
        Bring a table's numbers to mean 0 and standard deviation 1, as is done if not given. These are the mean and
        deviation of all clients' training rows; labels of a regression are scaled, too.
    gaps
        Missing values: refuse them (if not given), drop their rows, or fill them with the mean, by indicator marked.
        "mean": of all clients' training rows; categories are filled with none. "indicator": the same, and every column
        with gaps has one more input, 1 where a value is missing.
    size
        Size of pictures, 32 or 48x32; if not given, all must have the same.
    schema
        File that says how values become inputs, as pflego data schema writes it, for a site that has only data of its
        own.
    leave_out
        Clients that do not take part, by their names; any number of times. Nothing is learned from them, so that each
        can come later as somebody new: pflego join.
    ids
        The clients, where data is a function.
    seed
        Decides who gets what, and what is for testing.
    data_dir
        Folder searched first, for <name>.npz or the official files; $PFLEGO_DATA if not given. What is not found is
        taken from the cache, or downloaded into it.

    >>> load("digits", clients=20, classes_per_client=2, seed=0)
    Federation(20 clients, 1438 training samples, 10 classes)
    >>> load(lambda ward: (np.eye(3), np.array([0, 1, 0])), ids=["north", "south"], test_share=0)
    Federation(2 clients, 6 training samples, 2 classes)
    """
    check_arguments(load, locals())
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise SettingError(f"seed must be a whole number, not {shortened(seed)}")
    wanted = Partition(clients, classes_per_client, partition, alpha, column)
    reading = Reading(
        label, task, test_share, drop, category, ordered, date, weight, scale, gaps, size, schema
    )
    differing = Shift(shift, groups, label_noise)
    source: dict[str, object] = {"data": str(data)} if isinstance(data, str | Path) else {}
    if own.is_own(data):
        preparing = {"split": split, "rotations": rotations, "window": window, "minimum": minimum}
        _refuse({**preparing, "data_dir": data_dir}, "data sets that have a name")
        pool = own.read(data, reading, column=column, ids=ids, seed=seed, leave_out=leave_out or ())
        if pool.ids is not None:
            _refuse(differing.settings, "data whose clients are drawn, or that have a name")
            return _with_own_clients(pool, pool.ids, wanted, {**source, "data_seed": seed})
        found, made = _undivided(pool, wanted), pool.schema
    else:
        _refuse({"ids": ids}, "a function")
        if data_dir is not None:
            source["data_dir"] = str(data_dir)
        preparation = Preparation(split, rotations, window, minimum, test_share)
        if str(data) in TABLES:
            replace(preparation, test_share=None).refuse_others(str(data), ())
            _refuse({"column": column, **differing.settings}, "other data")
            pool = named_tables.read(
                str(data), reading, data_dir=data_dir, seed=seed, leave_out=leave_out or ()
            )
            return _with_own_clients(pool, pool.ids or [], wanted, {**source, "data_seed": seed})
        replace(reading, test_share=None, weight=None).refuse_all(
            f"for data of your own, in tables or folders, not for {data}"
        )
        found = data_set(str(data), data_dir=data_dir, wanted=preparation, seed=seed)
        found, made = found if weight is None else found.weighted_by(weight), None
    division = divide(found, wanted, seed=seed)
    source |= {**division.settings, **found.prepared, **differing.settings, "data_seed": seed}
    x_train, x_test = _shares(found.x_train, division.train), _shares(found.x_test, division.test)
    y_train, y_test = _shares(found.y_train, division.train), _shares(found.y_test, division.test)
    shares = differing.apply(
        division.ids,
        list(zip(x_train, y_train, x_test, y_test, strict=True)),
        _picture(found),
        seed=seed,
    )
    weights: Sequence[Array | None] = [None] * len(division.ids)
    if found.weights is not None:
        weights = _shares(found.weights, division.train)
    stay = range(len(division.ids))
    if leave_out:
        source["leave_out"] = list(leave_out)
        stay = staying(division.ids, leave_out)
    return Federation(
        [Client(division.ids[k], *shares[k], weights=weights[k]) for k in stay],
        source=source,
        schema=made,
    )


def _with_own_clients(
    pool: Pool, ids: Sequence[ClientId], wanted: Partition, source: dict[str, object]
) -> Federation:
    """Make a federation of the clients that data have themselves."""
    if wanted.partition not in (None, "column") or wanted.classes_per_client or wanted.alpha:
        raise DataError(
            f"{pool.name} has clients of its own: leave partition, classes_per_client and alpha out"
        )
    count = len(ids) + len(pool.left_out)
    if wanted.clients not in (None, count):
        raise DataError(f"{pool.name} has {count} clients of its own: leave clients out, or say {count}")
    if pool.left_out:
        source["leave_out"] = list(pool.left_out)
    return Federation(
        [pool.client(position, client_id) for position, client_id in enumerate(ids)],
        source={**source, "clients": count, **pool.settings},
        schema=pool.schema,
    )


def _undivided(pool: Pool, wanted: Partition) -> DataSet:
    """Make a data set without clients, for somebody to divide; refuse unless that was asked for."""
    if wanted == Partition():
        columns = listed([feature.name for feature in pool.schema.features])
        which = f" with column=... (--column), one of {columns}" if pool.schema.features else ""
        raise DataError(
            f"{pool.name}: nothing says whose a sample is: name the clients{which}, or divide it among some, "
            f"clients=20 (--clients 20)"
        )
    weights = None if pool.weights is None else pool.weights[0]
    return DataSet(pool.name, *pool.shares[0], prepared=pool.settings, weights=weights)


def _picture(found: DataSet) -> Sequence[int]:
    """Give the shape of a sample as an image; nothing where it is none."""
    shape = found.x_train.shape[1:]
    if found.name in KNOWN and prod(KNOWN[found.name].picture) == prod(shape):
        return KNOWN[found.name].picture
    return shape if found.x_train.dtype == np.uint8 and len(shape) in (2, 3) else ()


def _refuse(settings: Mapping[str, object], owner: str) -> None:
    for name, value in settings.items():
        if value is not None:
            raise DataError(f"{name} is for {owner}: leave it out")


def _shares(array: Array, parts: Sequence[Indices]) -> list[Array]:
    """Split an array into each client's rows, as views of one copy: all samples are in memory once."""
    ends = np.cumsum([len(own) for own in parts])
    return np.split(take(array, np.concatenate(parts)), ends[:-1])
