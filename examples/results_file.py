"""A JSON file of results that an example adds to, run by run: interrupted, the same command goes on."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

Row = TypeVar("Row", bound=Mapping[str, Any])


class ResultsFile(Generic[Row]):
    """Rows as a list in a file, one line per row; what is in it already need not be done again.

    Parameters
    ----------
    path
        The file, which may be new; None: rows are kept in memory alone.
    *key
        The entries of a row that say what was run.
    """

    def __init__(self, path: Path | None, *key: str) -> None:
        self.path, self._key = path, key
        self.rows: list[Row] = json.loads(path.read_text()) if path and path.exists() else []

    def __contains__(self, run: tuple[Hashable, ...]) -> bool:
        return any(tuple(row[name] for name in self._key) == run for row in self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def add(self, row: Row) -> Row:
        """Add a row, on disk at once."""
        self.rows.append(row)
        self.write()
        return row

    def write(self) -> None:
        """Write all rows."""
        if self.path:
            write_rows(self.path, self.rows)


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write rows as a JSON list, one line per row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f"[\n{lines}\n]\n")
