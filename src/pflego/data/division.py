"""Who gets which samples of a data set, as settings say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pflego.data.dataset import DataSet
from pflego.data.partition import (
    Indices,
    by_column,
    by_quantity,
    consecutive_classes,
    dirichlet,
    draw_classes,
    iid,
    in_shares,
    round_robin,
    shards,
    unequal,
)
from pflego.data.problems import listed
from pflego.errors import DataError
from pflego.federation.roster import ClientId

DEFAULT_CLIENTS = 20
DEFAULT_CLASSES_PER_CLIENT = 2
DEFAULT_ALPHA = 0.5
PartitionName: TypeAlias = Literal[
    "classes", "consecutive", "shards", "dirichlet", "dirichlet-capped", "quantity", "iid", "column"
]


@dataclass(frozen=True)
class Partition:
    """How a data set is to be divided, as `pflego.load` explains it; None where it is not given."""

    clients: int | None = None
    classes_per_client: int | str | None = None
    partition: PartitionName | None = None
    alpha: float | None = None
    column: str | None = None


@dataclass(frozen=True)
class Division:
    """The clients, the samples of each, and the settings that make it again."""

    ids: Sequence[ClientId]
    train: list[Indices]
    test: list[Indices]
    settings: dict[str, object]


def divide(found: DataSet, wanted: Partition, *, seed: int) -> Division:
    """Divide a data set among clients."""
    usual = "column" if found.clients else "iid" if _is_regression(found) else "classes"
    kind = wanted.partition or ("column" if wanted.column else usual)
    _refuse_what_does_not_apply(found, wanted, kind)
    clients = DEFAULT_CLIENTS if wanted.clients is None else wanted.clients
    if kind != "column" and clients > len(found.y_train):  # before a list of that many is made
        raise DataError(
            f"{found.name} is too small for {clients} clients: client {len(found.y_train)} would get no sample, "
            f"there are {len(found.y_train)} to train on"
        )
    match kind:
        case "column":
            division = _by_column(found, wanted)
        case "iid":
            train, test = (
                iid(len(y), clients, seed=seed, purpose=purpose)
                for y, purpose in [(found.y_train, "train"), (found.y_test, "test")]
            )
            division = Division(range(clients), train, test, {"clients": clients})
        case "quantity":
            alpha = wanted.alpha or DEFAULT_ALPHA
            train = unequal(len(found.y_train), clients, alpha, seed=seed)
            shares = np.array([len(own) for own in train], np.float64)
            test = by_quantity(len(found.y_test), shares, least=0, seed=seed, purpose="test")
            division = Division(range(clients), train, test, {"clients": clients, "alpha": float(alpha)})
        case "shards":
            division = _by_shards(found, clients, wanted.classes_per_client, seed)
        case "dirichlet" | "dirichlet-capped":
            alpha = wanted.alpha or DEFAULT_ALPHA
            division = _by_dirichlet(found, clients, alpha, seed, capped=kind == "dirichlet-capped")
        case _:
            division = _by_classes(
                found, clients, wanted.classes_per_client, seed, in_order=kind == "consecutive"
            )
    if kind != usual:
        division.settings["partition"] = kind
    if min(sizes := [len(own) for own in division.train]) == 0:
        raise DataError(
            f"{found.name} is too small for {len(sizes)} clients: client {sizes.index(0)} would get no sample"
        )
    return division


def staying(ids: Sequence[ClientId], leave_out: Sequence[str]) -> list[int]:
    """Give the positions of the clients that are not left out; refuse a name that nobody has, or that leaves nobody."""
    names = list(map(str, ids))
    if strangers := [name for name in leave_out if name not in names]:
        raise DataError(f"no client is called {strangers[0]!r}, to be left out; there are {listed(names)}")
    stay = [position for position, name in enumerate(names) if name not in leave_out]
    if not stay:
        raise DataError("leave_out names every client: somebody must stay")
    return stay


def _by_classes(
    found: DataSet, clients: int, each: int | str | None, seed: int, *, in_order: bool
) -> Division:
    train, test, classes = _places(found)
    number = _classes_per_client(each, classes)
    if in_order:
        held = consecutive_classes(classes, clients, number)
    else:
        held = draw_classes(classes, clients, number, seed=seed)
    dealt = round_robin(train, held, seed=seed, purpose="train")
    tested = round_robin(test, held, seed=seed, purpose="test")
    return Division(range(clients), dealt, tested, {"clients": clients, "classes_per_client": number})


def _by_shards(found: DataSet, clients: int, each: int | str | None, seed: int) -> Division:
    """Cut training samples in shards, and divide the test samples of a class as its training samples."""
    train, test, classes = _places(found)
    number = _classes_per_client(each, classes)
    dealt = shards(train, clients, number, seed=seed)
    tested = in_shares(test, _counts(train, dealt, classes), seed=seed, purpose="test")
    return Division(range(clients), dealt, tested, {"clients": clients, "classes_per_client": number})


def _counts(labels: Indices, dealt: Sequence[Indices], classes: int) -> npt.NDArray[np.float64]:
    """Count the samples of each class that each client has, (classes, clients)."""
    return np.stack([np.bincount(labels[own], minlength=classes) for own in dealt], axis=1).astype(np.float64)


def _by_dirichlet(found: DataSet, clients: int, alpha: float, seed: int, *, capped: bool) -> Division:
    """Divide the test samples of a class as its training samples: nobody is tested on what it never saw."""
    train, test, classes = _places(found)
    dealt = dirichlet(train, clients, alpha, seed=seed, capped=capped)
    tested = in_shares(test, _counts(train, dealt, classes), seed=seed, purpose="test")
    return Division(range(clients), dealt, tested, {"clients": clients, "alpha": float(alpha)})


def _by_column(found: DataSet, wanted: Partition) -> Division:
    name = wanted.column or found.clients
    if name is None or name not in found.columns:
        held = f"it has {', '.join(found.columns)}" if found.columns else "it has none"
        asked = "partition='column' needs column=, the name of one" if name is None else f"no column {name!r}"
        raise DataError(f"{found.name}: {asked}; {held} (arrays <column>_train and <column>_test)")
    train, test = found.columns[name]
    if train.dtype.kind not in "iuU" or test.dtype.kind not in "iuU":
        raise DataError(f"{found.name}: {name} is {train.dtype}; clients are named by whole numbers or texts")
    ids, mine, tested = by_column(train, test)
    if wanted.clients not in (None, len(ids)):
        raise DataError(
            f"{found.name} has {len(ids)} clients, one for each {name}: leave clients out, or say {len(ids)}"
        )
    settings: dict[str, object] = {"clients": len(ids)}
    if name != found.clients:
        settings["column"] = name
    return Division(ids, mine, tested, settings)


def _classes_per_client(wanted: int | str | None, classes: int) -> int:
    """Read a number, or a degree of personalisation: high (2), medium (half of the classes), none (all)."""
    match wanted:
        case None | "high":
            return DEFAULT_CLASSES_PER_CLIENT
        case "medium":
            return max(1, classes // 2)
        case "none":
            return classes
    return int(wanted)


def _refuse_what_does_not_apply(found: DataSet, wanted: Partition, kind: str) -> None:
    if _is_regression(found):
        if wanted.classes_per_client is not None:
            raise DataError(f"{found.name} is a regression, it has no classes: leave classes_per_client out")
        if kind not in ("quantity", "iid", "column"):
            raise DataError(
                f"{found.name} is a regression, it has no classes for partition={kind!r}: take 'iid'"
            )
    for name, owners in [
        ("classes_per_client", ["classes", "consecutive", "shards"]),
        ("alpha", ["dirichlet", "dirichlet-capped", "quantity"]),
        ("column", ["column"]),
    ]:
        if getattr(wanted, name) is not None and kind not in owners:
            how = f"{found.name} is divided by {found.clients or kind}"
            raise DataError(f"{name} is for partition={owners[0]!r}, but {how}: leave it out")


def _places(found: DataSet) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Map labels to positions among the classes; one never seen in training goes with its neighbour."""
    names = np.unique(found.y_train)
    train, test = (np.searchsorted(names, labels) for labels in (found.y_train, found.y_test))
    return train, np.minimum(test, len(names) - 1), len(names)


def _is_regression(found: DataSet) -> bool:
    return found.y_train.dtype.kind == "f"
