"""Clients as arrays: .npz files, one client per file, or a function from a client's id to its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from torch import Tensor

from pflego.data.blocks import Array
from pflego.data.own.classes import is_regression, numbered
from pflego.data.own.holdout import Mask, Share, held_out
from pflego.data.own.layout import Place
from pflego.data.own.pool import Pool, Reading
from pflego.data.problems import listed
from pflego.data.schema import Schema
from pflego.data.source import reading
from pflego.errors import DataError, calling, named, shortened
from pflego.federation.client import checked_id
from pflego.federation.roster import Array as Values
from pflego.federation.roster import ClientId
from pflego.learning.task import TaskName

Parts: TypeAlias = tuple[Array, ...]  # x and y; or x_train, y_train, x_test and y_test
ClientFunction: TypeAlias = Callable[[ClientId], Sequence[Values]]

_NAMES = [("x", "y"), ("x_train", "y_train", "x_test", "y_test"), ("x_train", "y_train")]
_OF_TABLES = ["label", "drop", "category", "ordered", "date", "scale", "gaps", "size"]


def from_files(places: Sequence[Place], folder: Path, wanted: Reading, *, seed: int) -> Pool:
    """Read one client per file, or two of them in folders train and test."""
    members: dict[ClientId, dict[bool | None, Parts]] = {}
    for place in places:
        if not place.names:
            raise DataError(f"{place.path}: its name, or that of its folder, must say whose it is")
        members.setdefault("/".join(place.names), {})[place.test] = read(place.path)
    joined = {
        client_id: _joined(f"{folder}: client {client_id!r}", own) for client_id, own in members.items()
    }
    known = wanted.known()
    weights = None
    if name := wanted.weight if known is None else known.weight:
        training = {"/".join(place.names): place.path for place in places if not place.test}
        weights = {client_id: read_weights(training[str(client_id)], name) for client_id in joined}
    return pool(joined, str(folder), wanted, seed=seed, weights=weights)


def from_function(
    function: ClientFunction, ids: Sequence[ClientId] | None, wanted: Reading, *, seed: int
) -> Pool:
    """Ask a function for the samples of every client."""
    if ids is None:
        raise DataError("a function from a client's id to its samples needs the clients: ids=[...]")
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise DataError(f"ids must be a list of clients' names, not {shortened(ids)}")
    names = [checked_id(one) for one in ids]
    if len(set(names)) < len(names) or not names:
        raise DataError(f"ids must name every client once, not {listed(list(map(str, names))) or 'nobody'}")
    name = named(function)
    wanted.refuse(
        ["weight"],
        f"for tables and .npz files, and {name} gives arrays without names (pflego.Client takes weights)",
    )
    members = {}
    for client_id in names:
        with calling(f"{name}({client_id!r}) failed", DataError):
            parts = function(client_id)
        if not isinstance(parts, Sequence) or len(parts) not in (2, 4):
            raise DataError(
                f"{name}({client_id!r}) must give (x, y) or (x_train, y_train, x_test, y_test), "
                f"not {len(parts) if isinstance(parts, Sequence) else type(parts).__name__}"
            )
        members[client_id] = tuple(map(_array, parts))
    return pool(members, name, wanted, seed=seed)


def pool(
    members: Mapping[ClientId, Parts],
    place: str,
    wanted: Reading,
    *,
    seed: int,
    weights: Mapping[ClientId, Array] | None = None,
) -> Pool:
    """Number the classes in one way for everybody, and set test samples aside where nobody has done it.

    weights: of every client's samples, or of those for training where these are apart.
    """
    wanted.refuse(_OF_TABLES, f"for tables and pictures, and {place} gives arrays")
    known = wanted.known()
    if known is not None:
        wanted.refuse(["task", "weight"], "said by the schema already")
    drawn = any(len(parts) == 2 for parts in members.values())
    if not drawn:
        wanted.refuse(["test_share"], f"for data that do not say what is for testing, as {place} does")
    for client_id, parts in members.items():
        for x, y in zip(parts[::2], parts[1::2], strict=True):
            if not x.shape or x.shape[:1] != y.shape[:1]:
                raise DataError(
                    f"{place}: client {client_id!r} has inputs of shape {x.shape}, but labels of shape {y.shape}"
                )
    labels = [y for parts in members.values() for y in parts[1::2]]
    names = _class_names(labels, place, known.task if known else wanted.task)
    if known is not None and (strange := [name for name in names if name not in known.class_names]):
        raise DataError(
            f"{place}: {strange[0]!r} is no class of the schema; it has {', '.join(known.class_names)}"
        )
    numbers = known.class_names if known else names
    shares, kept = [], []
    for client_id, parts in members.items():
        own, train = _share(parts, numbers, wanted.share, seed=seed, client=client_id)
        shares.append(own)
        if weights is not None:
            kept.append(_of_training(weights[client_id], parts[1], train, f"{place}: client {client_id!r}"))
    first = shares[0][0]
    task: TaskName = "classification" if names else "regression"
    schema = known or Schema(
        "arrays", first.shape[1:], str(first.dtype), task, class_names=names, weight=wanted.weight
    )
    if (schema.kind, schema.shape) != ("arrays", first.shape[1:]):
        raise DataError(
            f"{place} gives arrays of shape {first.shape[1:]} a sample, but the schema is one of {schema.kind} "
            f"of shape {schema.shape}"
        )
    resolved = {"test_share": wanted.share if drawn else None, "task": None if known else task}
    settings = wanted.settings(**resolved)
    return Pool(Path(place).name, list(members), shares, schema, settings, weights=kept or None)


def read(path: Path) -> Parts:
    """Read a client's file: x and y, or x_train, y_train, x_test and y_test."""
    with reading(path), np.load(path, allow_pickle=False) as archive:
        for names in _NAMES:
            if all(name in archive for name in names):
                return tuple(archive[name] for name in names)
        raise DataError(
            f"{path} has {', '.join(archive)}; it needs x and y, or x_train, y_train, x_test, y_test"
        )


def read_weights(path: Path, name: str) -> Array:
    """Read the weights in a client's file: an array of this name, or <name>_train."""
    with reading(path), np.load(path, allow_pickle=False) as archive:
        for key in (f"{name}_train", name):
            if key in archive:
                weights: Array = archive[key]
                return weights
        raise DataError(
            f"{path} has {', '.join(archive)}, and no {name!r} or '{name}_train', the weights: add it, with 1 for "
            f"every sample if all count alike"
        )


def _of_training(weights: Array, y: Array, train: Mask, who: str) -> Array:
    if weights.shape != (len(y),):
        raise DataError(
            f"{who} has {len(y)} samples, but weights of shape {weights.shape}: give one per sample"
        )
    return weights[train]


def _joined(who: str, parts: Mapping[bool | None, Parts]) -> Parts:
    """Join a client's samples, from one file or from one for training and one for testing."""
    if None in parts:
        return parts[None]
    if False not in parts:
        raise DataError(f"{who} has nothing to train on: leave it out, or give it some samples for training")
    train = parts[False]
    test = parts.get(True, (train[0][:0], train[1][:0]))
    if len(train) != 2 or len(test) != 2:
        raise DataError(f"{who}: in folders train and test, a file holds x and y alone")
    return (*train, *test)


def _class_names(labels: Sequence[Array], place: str, task: str | None) -> tuple[str, ...]:
    """Name all classes in order; none in regression."""
    if odd := [y for y in labels if y.dtype.kind not in "USfiub"]:
        raise DataError(f"{place}: labels must be numbers or texts, and all of one type, not {odd[0].dtype}")
    kinds = {
        "text" if y.dtype.kind in "US" else "fraction" if y.dtype.kind == "f" else "whole" for y in labels
    }
    if len(kinds) > 1:
        raise DataError(
            f"{place}: labels are of different types, {', '.join(sorted({str(y.dtype) for y in labels}))}"
        )
    if is_regression(task, text="text" in kinds, fraction="fraction" in kinds, name=f"{place}, y,"):
        return ()
    if many := [y for y in labels if y.ndim != 1]:
        raise DataError(f"{place}: class labels must be one a sample, not of shape {many[0].shape}")
    return numbered(np.concatenate(labels))[1]


def _share(
    parts: Parts, names: tuple[str, ...], share: float, *, seed: int, client: ClientId
) -> tuple[Share, Mask]:
    """Split one client's samples into training and test samples, and number its classes.

    Give a mask, too, of those of the first part that are for training.
    """
    ys = [numbered(y, names)[0] if names else _fractions(y) for y in parts[1::2]]
    if len(parts) == 4:
        return (parts[0], ys[0], parts[2], ys[1]), np.ones(len(ys[0]), bool)
    x, y = parts[0], ys[0]
    kinds = y.astype(np.int64) if names else np.zeros(len(y), np.int64)
    test = held_out(kinds, share, seed=seed, client=client)
    return (x[~test], y[~test], x[test], y[test]), ~test


def _fractions(y: Array) -> Array:
    """Cast targets to floats, which mean a regression."""
    return y if y.dtype.kind == "f" else y.astype(np.float32)


def _array(values: Values) -> Array:
    """Give values as an array; objects of one plain type, as pandas keeps texts, by that type."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    array = np.asarray(values)
    kinds: set[type] = {type(one) for one in array.ravel().tolist()} if array.dtype.kind == "O" else set()
    return np.array(array.tolist()) if kinds in ({str}, {int}, {float}) else array
