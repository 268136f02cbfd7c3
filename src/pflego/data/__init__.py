"""Data sets divided into federations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from pflego.data.partition import draw_classes, iid, round_robin
from pflego.data.sets import data_set
from pflego.errors import UserError, check_positive
from pflego.federation import Client, Federation

DEFAULT_CLIENTS = 20
DEFAULT_CLASSES_PER_CLIENT = 2


def load(
    data: str | Path,
    *,
    clients: int = DEFAULT_CLIENTS,
    classes_per_client: int | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """Load a data set and divide it among clients.

    Parameters
    ----------
    data
        The name of a data set ("digits", "diabetes", ...) or the path of a .npz file with x_train, y_train,
        x_test and y_test.
    clients
        I, how many clients share it.
    classes_per_client
        How many classes each client holds, 2 if not said; every class is held by somebody, and its samples are
        dealt out one at a time to the clients holding it, for training and testing alike. Regression has no
        classes: all samples are dealt out one at a time.
    seed
        Decides who gets what.
    data_dir
        A folder searched first for `<name>.npz`; without it, the one in the environment's PFLEGO_DATA.

    >>> load("digits", clients=20, classes_per_client=2, seed=0)
    Federation(20 clients, 1438 training samples, 10 classes)
    """
    check_positive("clients", clients, whole=True)
    found = data_set(str(data), data_dir=data_dir)
    source: dict[str, object] = {"data": str(data), "clients": clients, "data_seed": seed}
    if data_dir is not None:
        source["data_dir"] = str(data_dir)
    if found.y_train.dtype.kind == "f":
        if classes_per_client is not None:
            raise UserError(f"{found.name} is a regression, it has no classes: leave classes_per_client out")
        parts = [
            iid(len(y), clients, seed=seed, purpose=p)
            for y, p in [(found.y_train, "train"), (found.y_test, "test")]
        ]
    else:
        if classes_per_client is None:
            classes_per_client = DEFAULT_CLASSES_PER_CLIENT
        check_positive("classes_per_client", classes_per_client, whole=True)
        source["classes_per_client"] = classes_per_client
        names = np.unique(found.y_train)
        held = draw_classes(len(names), clients, classes_per_client, seed=seed)
        parts = [
            round_robin(_places(y, names), held, seed=seed, purpose=p)
            for y, p in [(found.y_train, "train"), (found.y_test, "test")]
        ]
    train, test = parts
    if min(sizes := [len(own) for own in train]) == 0:
        raise UserError(
            f"{found.name} is too small for {clients} clients: client {sizes.index(0)} would get no sample"
        )
    return Federation(
        [
            Client(id, found.x_train[mine], found.y_train[mine], found.x_test[theirs], found.y_test[theirs])
            for id, (mine, theirs) in enumerate(zip(train, test, strict=True))
        ],
        source=source,
    )


def _places(labels: npt.NDArray[np.generic], names: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Positions of labels among the classes; one that never occurs in training goes with its neighbour."""
    return np.minimum(np.searchsorted(names, labels), len(names) - 1)
