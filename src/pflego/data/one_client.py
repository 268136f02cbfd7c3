"""A new client's file, read as the others' data were, and the classes in it that nobody has had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pflego.data import own
from pflego.data.blocks import Array
from pflego.data.own import arrays
from pflego.data.own.classes import labels, numbered
from pflego.data.own.layout import explore, format_of
from pflego.data.own.pool import Pool, Reading
from pflego.data.own.roles import is_number
from pflego.data.own.tables import Piece, read_files
from pflego.data.schema import Schema
from pflego.errors import DataError
from pflego.federation.roster import Client, ClientId

if TYPE_CHECKING:
    import pyarrow as pa


def read_client(
    path: Path, client_id: ClientId, schema: Schema, *, seed: int, test_share: float | None = None
) -> tuple[Client, Schema]:
    """Read one client's samples, and give the schema too: with new classes, if there are any, after the known ones.

    What is for testing is as the file says, or drawn. Of a file with several clients, the one of this id is taken.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if format_of(path) == "npz" and path.is_file():
        parts = _by_names(arrays.read(path), schema)
        schema = _widened(schema, _named_in(parts))
        weights = None if schema.weight is None else {client_id: arrays.read_weights(path, schema.weight)}
        reading = Reading(schema=schema, test_share=test_share)
        pool = arrays.pool({client_id: parts}, str(path), reading, seed=seed, weights=weights)
    else:
        schema = _widened(schema, _classes_in(path, schema) if schema.class_names else [])
        pool = own.read(path, Reading(schema=schema, test_share=test_share), column=None, ids=None, seed=seed)
    return pool.client(_place(pool, client_id, path), client_id), schema


def _place(pool: Pool, client_id: ClientId, path: Path) -> int:
    """Return a client's position in a file; the only one may have another name there."""
    names = [str(other) for other in pool.ids or [client_id]]
    if len(names) == 1:
        return 0
    if str(client_id) not in names:
        raise DataError(f"{path} has {len(names)} clients, but none is called {str(client_id)!r}")
    return names.index(str(client_id))


def _by_names(parts: arrays.Parts, schema: Schema) -> arrays.Parts:
    """Turn class ids into class names, where names are not numbers and the file has ids."""
    if not schema.class_names or all(map(is_number, schema.class_names)):
        return parts
    return tuple(_named(part, schema) if place % 2 else part for place, part in enumerate(parts))


def _named(y: Array, schema: Schema) -> Array:
    return (
        np.array([schema.class_name(int(client_id)) for client_id in y], dtype=str)
        if y.dtype.kind in "iu"
        else y
    )


def _named_in(parts: arrays.Parts) -> Sequence[str]:
    return numbered(np.concatenate(parts[1::2]))[1]


def _classes_in(path: Path, schema: Schema) -> Sequence[str]:
    """Name the classes of a file or folder; of a table, those that the schema does not have."""
    layout = explore(path) if path.is_dir() else None
    if layout is not None and layout.format == "npz":
        return [name for place in layout.places for name in _named_in(arrays.read(place.path))]
    if layout is not None and layout.format == "image":
        return sorted({place.names[-1] for place in layout.places if place.names})
    if schema.label is None:
        return []
    files = [path] if layout is None else [place.path for place in layout.places]
    column = _column(schema.label, files)
    among = labels(schema.label, column, schema.task, names=schema.class_names)
    found = labels(schema.label, column, schema.task)
    new = np.unique(found.values[among.values == len(schema.class_names)])
    return [found.names[int(code)] for code in new]


def _column(name: str, files: Sequence[Path]) -> pa.ChunkedArray:
    def choose(names: list[str], file: Path) -> list[str]:
        if name not in names:
            raise DataError(f"{file} has no column {name!r}, the labels")
        return [name]

    return read_files({file: Piece(str(file), 0) for file in files}, choose).data.column(name)


def _widened(schema: Schema, names: Sequence[str]) -> Schema:
    """Add these classes to a schema; those it knows keep their ids."""
    new = [name for name in dict.fromkeys(names) if schema.class_names and name not in schema.class_names]
    return replace(schema, class_names=(*schema.class_names, *new)) if new else schema
