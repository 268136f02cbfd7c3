"""Tables from files, CSV and Parquet, as one arrow table that knows where its rows come from."""

from __future__ import annotations

import csv
import gzip
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pflego.data.own.columns import Indices, Mask, coarse_type
from pflego.data.problems import listed
from pflego.data.source import reading
from pflego.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_BETWEEN = {".csv": ",;\t", ".tsv": "\t", ".csv.gz": ",;\t", ".tsv.gz": "\t"}  # what may separate values
SUFFIXES = [*_BETWEEN, ".parquet"]

_MARKS = {
    BOM_UTF32_LE: "UTF-32",  # begins like UTF-16's, and so comes first
    BOM_UTF32_BE: "UTF-32",
    BOM_UTF16_LE: "UTF-16",
    BOM_UTF16_BE: "UTF-16",
}
_SAVE_AS = "save it as UTF-8 (iconv -f latin1 -t utf-8 does, or whatever it is written in)"
_DECIMAL = re.compile(r"-?\d+([.,])\d+")
_BLOCK = 1 << 24  # bytes that are parsed at a time; a row must fit
_SOME = 100  # lines that show how a file is written


@runtime_checkable
class ArrowTable(Protocol):
    """A table that can be handed over by Arrow's interface, as those of pandas, polars and pyarrow can."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


@dataclass(frozen=True)
class Piece:
    """Rows that come from one place, and what the place says of them."""

    place: str
    rows: int
    client: str | None = None
    test: bool | None = None  # whether they are for testing; None: it does not say


@dataclass(frozen=True)
class Table:
    """Rows of one or several places. `names` has those of classes, by column, where it holds their numbers."""

    data: pa.Table
    pieces: Sequence[Piece]
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    kept: Indices | None = None  # the rows that are left, by their positions in all pieces; None: all

    @property
    def columns(self) -> list[str]:
        """Their names."""
        names: list[str] = self.data.column_names
        return names

    def row(self, number: int) -> str:
        """Name a row: its place, and its number there, from 1 on."""
        number = number if self.kept is None else int(self.kept[number])
        piece = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[piece]) - self.pieces[piece].rows
        return f"{self.pieces[piece].place}, row {number - before + 1}"

    def without(self, rows: Mask) -> Table:
        """Leave rows out."""
        import pyarrow as pa

        kept = np.flatnonzero(~rows) if self.kept is None else self.kept[~rows]
        return replace(self, data=self.data.filter(pa.array(~rows)), kept=kept)

    def each(self, values: Iterable[object]) -> npt.NDArray[np.generic]:
        """Repeat the value of every piece for each of its rows."""
        rows = np.repeat(np.array(list(values)), [piece.rows for piece in self.pieces])
        return rows if self.kept is None else rows[self.kept]

    @cached_property
    def _ends(self) -> Indices:
        return np.cumsum([piece.rows for piece in self.pieces])


def suffix(path: Path) -> str:
    """Return the end of a table's name, such as .csv or .csv.gz; nothing if it is none."""
    return next((end for end in SUFFIXES if path.name.lower().endswith(end)), "")


def read_files(
    files: Mapping[Path, Piece],
    choose: Callable[[list[str], Path], list[str]],
    texts: Collection[str] = (),
) -> Table:
    """Read files into one table: the columns that `choose` takes of a file's, `texts` as they are written.

    A piece says what its file says of its rows; how many they are is counted.
    """
    tables = {path: _read(path, choose, texts) for path in files}
    first, names = next(iter(tables)), next(iter(tables.values())).column_names
    for path, table in tables.items():
        for one, other, absent in [
            (path, first, set(names) - set(table.column_names)),
            (first, path, set(table.column_names) - set(names)),
        ]:
            if absent:
                raise DataError(
                    f"{one} has no column {', '.join(map(repr, sorted(absent)))}, which {other} has: "
                    f"give all files the same columns, or leave some out (drop)"
                )
    mixed = [
        name for name in names if len({coarse_type(t.column(name)) for t in tables.values()} - {None}) > 1
    ]
    if mixed:  # 1, 2 in one file and 1, x in another: texts in both
        tables = {path: _read(path, choose, [*texts, *mixed]) for path in files}
    pieces = [replace(piece, rows=tables[path].num_rows) for path, piece in files.items()]
    return Table(join([table.select(names) for table in tables.values()], first.parent), pieces)


def from_arrow(data: ArrowTable, drop: Collection[str]) -> Table:
    """Take a table that somebody has made already."""
    check_installed()
    import pyarrow as pa

    table = pa.table(data)
    return Table(
        table.select(without(drop, table.column_names, "the table")), [Piece("the table", table.num_rows)]
    )


def without(drop: Collection[str], names: Sequence[str], place: object) -> list[str]:
    """Return the names that are left when some are dropped; refuse one that is not there."""
    if absent := [name for name in drop if name not in names]:
        raise DataError(f"{place} has no column {absent[0]!r} to drop; it has {listed(names)}")
    return [name for name in names if name not in drop]


def join(tables: Sequence[pa.Table], place: object) -> pa.Table:
    """Put tables with the same columns below one another."""
    import pyarrow as pa

    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{place}: a column has different types of values: {error}") from error


def check_installed() -> None:
    """Refuse tables where the library that reads them is missing."""
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise DataError("for tables: pip install 'pflego[tables]'") from error


def _read(path: Path, choose: Callable[[list[str], Path], list[str]], texts: Collection[str]) -> pa.Table:
    check_installed()
    import pyarrow as pa
    from pyarrow import csv as arrow
    from pyarrow import parquet

    with reading(path):
        if suffix(path) == ".parquet":
            with parquet.ParquetFile(path) as file:
                table = file.read(columns=choose(file.schema_arrow.names, path))
            for name in set(texts) & set(table.column_names):
                column = table.column(name).cast(pa.string())
                table = table.set_column(table.column_names.index(name), name, column)
            return table
        names, delimiter, decimal_point = how_written(path)
        written = {name.strip(): name for name in names}
        if len(written) < len(names):
            twice = Counter(name.strip() for name in names).most_common(1)[0][0]
            raise DataError(f"{path} has two columns called {twice!r}")
        chosen = choose(list(written), path)
        table = arrow.read_csv(
            path,
            read_options=arrow.ReadOptions(block_size=_BLOCK),
            parse_options=arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow.ConvertOptions(
                strings_can_be_null=True,
                include_columns=[written[name] for name in chosen],
                column_types={written[name]: pa.string() for name in texts if name in chosen},
                decimal_point=decimal_point,
            ),
        )
        table = table.rename_columns(chosen)
        _check_encoding(table, path)
        return table


def _check_encoding(table: pa.Table, path: Path) -> None:
    """Refuse columns that Arrow left as bytes, since they are not UTF-8; say where the first such value is."""
    from pyarrow import types

    for name, column in zip(table.column_names, table.columns, strict=True):
        if not (types.is_binary(column.type) or types.is_large_binary(column.type)):
            continue
        for row, value in enumerate(column.to_pylist(), start=1):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                raise DataError(
                    f"{path} is not written in UTF-8, column {name!r} has {value[:40]!r} in row {row}: {_SAVE_AS}"
                ) from None


def _is_utf8(text: str) -> bool:
    """Tell whether a line that was read with its foreign bytes set aside has none."""
    return not any("\udc80" <= letter <= "\udcff" for letter in text)


def how_written(path: Path) -> tuple[list[str], str, str]:
    """Return the names in the first line, the delimiter between values, and the decimal separator."""
    unpack = gzip.open if path.name.lower().endswith(".gz") else open
    with unpack(path, "rb") as file:
        start = file.read(4)
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            raise DataError(f"{path} is written in {encoding}: {_SAVE_AS}")
    with unpack(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        lines = [line for line in islice(text, _SOME) if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty")
    if not _is_utf8(lines[0]):
        shown = lines[0].encode("utf-8", "surrogateescape")[:60]
        raise DataError(f"{path} is not written in UTF-8, its first line begins {shown!r}: {_SAVE_AS}")
    delimiter = max(_BETWEEN[suffix(path)], key=lines[0].count)
    names, *rows = csv.reader(lines, delimiter=delimiter)
    points = {found[1] for row in rows for value in row if (found := _DECIMAL.fullmatch(value.strip()))}
    return names, delimiter, "," if delimiter == ";" and points == {","} else "."
