"""The history as a table, for whatever reads tables."""

from __future__ import annotations

from csv import DictWriter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pflego.files import make_folder
from pflego.trackers.base import Told, Tracker

if TYPE_CHECKING:
    from pflego.runs.run import Run


class CSV(Tracker):
    """A file with one line per round; a run that is resumed writes it anew from its history.

    Parameters
    ----------
    place
        The file; metrics.csv in the run's folder if not given.
    """

    name: ClassVar[str] = "csv"
    usual: ClassVar[str] = "metrics.csv"

    def open(self, run: Run, place: Path) -> int:
        """Empty the file: all of the history is to come."""
        make_folder(place.parent)
        place.write_bytes(b"")
        self._path = place
        kinds = ["everyone", *(["everyone_adapted"] if run.plan.evaluate_adapted else [])]
        self._sometimes = [f"{kind}_{run.federation.task.metric}" for kind in kinds]  # not in every row
        return 0

    def log(self, told: Told) -> None:
        """Add a line, on disk at once; before the first one, the heading."""
        with self._path.open("a", newline="") as file:
            columns = [*(name for name in told.row if name not in self._sometimes), *self._sometimes]
            table = DictWriter(file, columns, lineterminator="\n")
            if file.tell() == 0:
                table.writeheader()
            table.writerow(told.row)

    def close(self, *, finished: bool) -> None:
        """Do nothing: every line is on disk already."""
