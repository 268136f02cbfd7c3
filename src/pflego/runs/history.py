"""What has happened in a run, round by round, and the files it is kept in."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from pflego.errors import FolderError
from pflego.files import write_atomically

HistoryRow: TypeAlias = dict[str, float | int | None]
Evaluations: TypeAlias = dict[int, list[float | None]]  # by round: the metric of every client


def everybodys(evaluations: Evaluations, clients: int) -> Evaluations:
    """Extend figures to this many clients: those who joined later had none before."""
    return {number: [*own, *[None] * (clients - len(own))] for number, own in evaluations.items()}


def moved(row: HistoryRow) -> bool:
    """Tell whether the server could take a step in a round."""
    arrived = (row["participants"] or 0) - (row["missing"] or 0) - (row["rejected"] or 0)
    return arrived > 0 and not row.get("refused")


class HistoryFile:
    """A file of JSON, at most one line per round, in the order of rounds; what is added is on disk at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = blake2b(digest_size=16)
        self._known = -1, 0  # a round, and how many bytes the lines up to it are, when it was last read

    @property
    def digest(self) -> str:
        """Of all lines so far."""
        return self._written.hexdigest()

    def append(self, row: Mapping[str, object]) -> None:
        """Add a line."""
        line = json.dumps(row).encode() + b"\n"
        self._written.update(line)
        try:
            with self._path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FolderError(
                f"cannot write {self._path}: {error.strerror or error}; the run can be resumed when that is mended"
            ) from error

    def read(self, rounds: int, digest: str) -> list[dict[str, Any]]:
        """Read the lines of the rounds up to one, which must be those of the digest. Nothing is changed."""
        rows, content, foreign = self._upto(rounds)
        self._written = blake2b(content, digest_size=16)
        if self.digest != digest:
            self._refuse(foreign or f"its lines up to round {rounds} are not those of the checkpoint")
        self._known = rounds, len(content)
        return rows

    def rounds(self) -> int:
        """Count the lines, but for half a one that a crash has left."""
        return len(self._readable(sys.maxsize)[0])

    def check(self, rounds: int) -> None:
        """Refuse a file with something else than lines of ours before those that `cut` would drop."""
        self._readable(rounds)

    def cut(self, rounds: int) -> None:
        """Drop the lines of later rounds."""
        (known, length), self._known = self._known, (-1, 0)
        if known == rounds:  # they were just read: a long history is not read twice
            content = self._content()
            if len(content) == length:
                return
            content = content[:length]
        else:
            content = self._readable(rounds)[1]
        self._written = blake2b(content, digest_size=16)
        write_atomically(self._path, content)

    def _readable(self, rounds: int) -> tuple[list[dict[str, Any]], bytes]:
        rows, content, foreign = self._upto(rounds)
        if foreign:
            self._refuse(foreign)
        return rows, content

    def _upto(self, rounds: int) -> tuple[list[dict[str, Any]], bytes, str]:
        """Read the first lines that are whole and of a round not above this one: as rows, and as they are.

        Last: which line is none of ours, where reading ended at one. Half a line is ours: a crash leaves it.
        """
        rows: list[dict[str, Any]] = []
        content, end = self._content(), 0
        for place, line in enumerate(content.splitlines(keepends=True), start=1):
            if (row := _row(line)) is None:
                whole = line.endswith(b"\n")
                return rows, content[:end], f"line {place} does not say which round it is of" if whole else ""
            if row["round"] > rounds:
                break
            rows.append(row)
            end += len(line)
        return rows, content[:end], ""

    def _refuse(self, why: str) -> NoReturn:
        raise FolderError(f"{self._path} is damaged and was left as it is: {why}")

    def _content(self) -> bytes:
        return self._path.read_bytes() if self._path.exists() else b""


def _row(line: bytes) -> dict[str, Any] | None:
    """Read a line; None for half a one, or none of ours."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and type(row.get("round")) is int else None
