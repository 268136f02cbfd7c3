"""Data of your own: a path, a data set of Hugging Face's library, or a function, as the samples of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pflego.data.division import staying
from pflego.data.own import arrays, hugging, pictures, tabular
from pflego.data.own.arrays import ClientFunction
from pflego.data.own.layout import explore, format_of
from pflego.data.own.pool import Pool, Reading
from pflego.data.own.tables import ArrowTable, Piece, from_arrow, read_files, without
from pflego.data.problems import warn
from pflego.data.sets.catalogue import KNOWN
from pflego.errors import DataError
from pflego.federation.roster import ClientId

Own: TypeAlias = str | Path | hugging.Datasets | ArrowTable | ClientFunction


def is_own(data: object) -> bool:
    """Tell whether data are somebody's own: neither the name of a data set nor a single .npz file."""
    if not isinstance(data, str | Path):
        return True
    path = Path(data)
    if path.suffix.lower() == ".npz" and not path.is_dir():
        return False
    return format_of(path) == "table" or (str(data) not in KNOWN and (path.is_dir() or len(path.parts) > 1))


def read(
    data: Own,
    wanted: Reading,
    *,
    column: str | None,
    ids: Sequence[ClientId] | None,
    seed: int,
    leave_out: Sequence[str] = (),
) -> Pool:
    """Read them; of tables, nothing is learned from the rows of clients that are left out."""
    pool = _read(data, wanted, column, ids, seed, leave_out)
    if pool.ids is None or pool.left_out or not leave_out:
        return pool
    return pool.only(staying(pool.ids, leave_out), leave_out)


def _read(
    data: Own,
    wanted: Reading,
    column: str | None,
    ids: Sequence[ClientId] | None,
    seed: int,
    leave_out: Sequence[str],
) -> Pool:
    if hugging.is_dataset(data):
        _refuse(ids, "ids", "a data set")
        table = hugging.table(data, wanted.drop or ())
        return tabular.pool(table, "the data set", wanted, column, seed=seed, leave_out=leave_out)
    if isinstance(data, ArrowTable):
        _refuse(ids, "ids", "a table")
        table = from_arrow(data, wanted.drop or ())
        return tabular.pool(table, "the table", wanted, column, seed=seed, leave_out=leave_out)
    if isinstance(data, str | Path):
        _refuse(ids, "ids", str(data))
        return _from_path(Path(data).expanduser(), wanted, column, seed, leave_out)
    if not callable(data):
        raise DataError(
            f"data must be a name, a path, a table, a data set or a function from a client's id to its samples, "
            f"not {type(data).__name__}"
        )
    _refuse(column, "column", "a function")
    return arrays.from_function(data, ids, wanted, seed=seed)


def _from_path(path: Path, wanted: Reading, column: str | None, seed: int, leave_out: Sequence[str]) -> Pool:
    if path.is_file() and format_of(path) == "table":
        return _table({path: Piece(str(path), 0)}, path, wanted, column, seed, leave_out)
    if not path.is_dir():
        raise DataError(f"{path} is no folder and no CSV, Parquet or .npz file that could be read")
    layout = explore(path)
    if layout.others:
        warn(f"{layout.others} other file{'s' * (layout.others > 1)} in {path} left unread")
    if layout.format == "table":
        files = {
            place.path: Piece(str(place.path), 0, "/".join(place.names) or None, place.test)
            for place in layout.places
        }
        return _table(files, path, wanted, column, seed, leave_out)
    _refuse(column, "column", str(path))
    if layout.format == "npz":
        return arrays.from_files(layout.places, path, wanted, seed=seed)
    return pictures.pool(layout.places, path, wanted, seed=seed)


def _table(
    files: Mapping[Path, Piece],
    place: Path,
    wanted: Reading,
    column: str | None,
    seed: int,
    leave_out: Sequence[str],
) -> Pool:
    drop = wanted.drop or ()
    texts = tabular.kinds_of(wanted).texts
    table = read_files(files, lambda names, file: without(drop, names, file), texts=texts)
    return tabular.pool(table, str(place), wanted, column, seed=seed, leave_out=leave_out)


def _refuse(value: object, name: str, what: str) -> None:
    if value is not None:
        raise DataError(f"{name} is nothing for {what}: leave it out")
