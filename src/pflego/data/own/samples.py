"""New data, read as those were that a model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflego.data.blocks import Array
from pflego.data.own import images, tabular
from pflego.data.own.classes import labels, numbered
from pflego.data.own.kinds import ColumnKinds
from pflego.data.own.layout import Place, explore, format_of
from pflego.data.own.roles import counted, gaps, is_number, misfit
from pflego.data.own.tables import Piece, how_written, read_files
from pflego.data.problems import listed
from pflego.data.schema import Samples, Schema
from pflego.data.source import reading
from pflego.errors import DataError


def read(schema: Schema, path: Path) -> Samples:
    """Read a file, or a folder of client files or of pictures."""
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    layout = explore(path) if path.is_dir() else None
    places = [Place(path, ())] if layout is None else layout.places
    if len({place.test for place in places}) > 1:
        raise DataError(f"{path} holds data for training and for testing: name the folder of one of them")
    match layout.format if layout else format_of(path):
        case "table" if schema.features:
            return _table(schema, path, places)
        case "table" if schema.kind == "arrays" and layout is None:
            return _plain_numbers(schema, path)
        case "npz" if schema.kind == "arrays":
            return _arrays(schema, places)
        case "image" if schema.dtype == "uint8" and len(schema.shape) in (2, 3) and not schema.features:
            return _pictures(schema, path, places)
    raise DataError(f"{path}: the model was trained on {_trained_on(schema)}, which it does not hold")


def _table(schema: Schema, path: Path, places: Sequence[Place]) -> Samples:
    pieces = {place.path: Piece(str(place.path), 0, "/".join(place.names) or None) for place in places}
    wanted = [feature.name for feature in schema.features]
    kinds = ColumnKinds.of_schema(schema)

    def choose(names: list[str], file: Path) -> list[str]:
        if absent := [name for name in wanted if name not in names]:
            raise DataError(f"{file} has no column {listed(absent)}, which the model needs")
        return [*wanted, *(name for name in (schema.label, schema.client) if name in names)]

    table = read_files(pieces, choose, texts=kinds.texts)
    table = kinds.convert(table, wanted, str(path))
    if problems := misfit(table, schema.features):
        raise DataError(f"{path}: {problems[0]}")
    if holes := gaps(table, [name for name in table.columns if name not in wanted or not schema.fill]):
        raise DataError(f"{path}: values are missing, {counted(table, holes)}: fill them first")
    rows = np.arange(table.data.num_rows)
    y = None
    if schema.label in table.columns:
        found = labels(schema.label, table.data.column(schema.label), schema.task, names=schema.class_names)
        y = tabular.targets(schema, found)
    ids, owners = tabular.clients(table, path, schema.client if schema.client in table.columns else None)
    return Samples(
        tabular.inputs(schema, table, rows),
        y,
        None if ids is None else [ids[owner] for owner in owners],
        range(1, len(rows) + 1) if len(places) == 1 else [table.row(row) for row in rows.tolist()],
    )


def _arrays(schema: Schema, places: Sequence[Place]) -> Samples:
    found = [_archive(schema, place.path) for place in places]
    known = all(y is not None for _, y in found)
    return Samples(
        np.concatenate([x for x, _ in found]),
        np.concatenate([y for _, y in found if y is not None]) if known else None,
        ["/".join(place.names) for place, (x, _) in zip(places, found, strict=True) for _ in x]
        if places[0].names
        else None,
        range(1, sum(len(x) for x, _ in found) + 1),
    )


def _archive(schema: Schema, path: Path) -> tuple[Array, Array | None]:
    with reading(path), np.load(path, allow_pickle=False) as archive:
        end = next((end for end in ("", "_test") if f"x{end}" in archive), None)
        if end is None:
            raise DataError(
                f"{path} has {', '.join(archive)}; it needs x, and y if labels are known, or x_test and y_test"
            )
        x = _as_trained_on(schema, archive[f"x{end}"], path)
        y = _numbers(schema, archive[f"y{end}"]) if f"y{end}" in archive else None
    if y is not None and len(y) != len(x):
        raise DataError(f"{path}: {len(x)} inputs, but {len(y)} labels")
    return x, y


def _plain_numbers(schema: Schema, path: Path) -> Samples:
    """Read a CSV file of numbers alone, one sample per row, with or without a line of names."""
    with reading(path):
        names, delimiter, _ = how_written(path)
        values = np.loadtxt(
            path, delimiter=delimiter, skiprows=0 if all(map(is_number, names)) else 1, ndmin=2
        )
    if values.shape[1] != schema.inputs:
        raise DataError(f"{path} has {values.shape[1]} numbers a row, but a sample has {schema.inputs}")
    x = _as_trained_on(schema, values.reshape(-1, *schema.shape), path)
    return Samples(x, None, None, range(1, len(x) + 1))


def _pictures(schema: Schema, folder: Path, places: Sequence[Place]) -> Samples:
    """Read pictures in no folder, or in one of their class or client, or in client/class."""
    paths = [place.path for place in places]
    depth = min(len(place.names) for place in places)
    last = np.array([place.names[-1] if place.names else "" for place in places])
    classes, names = numbered(last, schema.class_names)
    labelled = depth > 1 or (depth == 1 and (classes < len(names)).all())
    whose = [place.names[:-1] if labelled else place.names for place in places]
    return Samples(
        images.decode(paths, paths, schema.shape),
        classes if labelled else None,
        ["/".join(own) for own in whose] if all(whose) else None,
        [str(path.relative_to(folder)) if path != folder else path.name for path in paths],
    )


def _as_trained_on(schema: Schema, x: Array, path: Path) -> Array:
    """Cast inputs to the type that a model knows; refuse another shape."""
    if x.shape[1:] != schema.shape:
        raise DataError(
            f"{path} has samples of shape {x.shape[1:]}, but the model was trained on {schema.shape}"
        )
    wanted = np.dtype(schema.dtype)
    if wanted == np.uint8 and not np.isin(x, np.arange(256)).all():
        raise DataError(f"{path} has {x.dtype} inputs, but the model was trained on bytes, 0 to 255")
    return x.astype(wanted, copy=False)


def _numbers(schema: Schema, y: Array) -> Array:
    """Turn the labels of an array into class ids, or into numbers."""
    if schema.task == "regression":
        return y.astype(np.float32)
    by_name = y.dtype.kind in "US" or all(map(is_number, schema.class_names))
    return numbered(y, schema.class_names)[0] if by_name else y.astype(np.int64)


def _trained_on(schema: Schema) -> str:
    if schema.features:
        return "a table, CSV or Parquet"
    return "pictures" if schema.kind == "images" else f"arrays of shape {schema.shape}, in a .npz file"
