"""What came of a search: its trials, the best of them, and the files that say so."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path

from pflego.files import write_atomically
from pflego.report.words import Metric
from pflego.runs.record import Table, as_toml
from pflego.settings.tables import as_tables
from pflego.tuning.space import Spaces
from pflego.tuning.study import Attempt


@dataclass(frozen=True)
class Tuning:
    """A search that is done.

    Attributes
    ----------
    common
        The settings that all trials had in common.
    spaces
        What was tried.
    attempts
        All trials, in the order they were made. The first is the settings as they were, where they are among what
        was tried.
    metric
        What was judged by.
    mattered
        How much each hyperparameter did, as shares of one; empty where too few trials were finished to tell.
    """

    common: Table
    spaces: Spaces
    attempts: list[Attempt]
    metric: Metric
    mattered: dict[str, float]

    @property
    def best(self) -> Attempt:
        """The finished trial with the best figure; the first of them, if there are several."""
        return self.ranked()[0]

    @property
    def settings(self) -> Table:
        """The best trial's, as `pflego run` takes them."""
        return {**self.common, **self.best.values}

    def ranked(self) -> list[Attempt]:
        """List the finished trials, the best first, then the others."""
        sign = -1 if self.metric.higher_is_better else 1

        def rank(attempt: Attempt) -> tuple[bool, float]:
            return attempt.ended != "finished", 0.0 if attempt.figure is None else sign * attempt.figure

        return sorted(self.attempts, key=rank)

    def write(self, folder: Path) -> None:
        """Leave the best as a settings file and the trials as a table."""
        write_atomically(folder / "best.toml", as_toml(as_tables(self.settings)).encode())
        table = StringIO(newline="")
        columns = ["number", *self.spaces, "ended", "figure", "seconds", "reason"]
        writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({**attempt.values, **asdict(attempt)} for attempt in self.attempts)
        write_atomically(folder / "trials.csv", table.getvalue().encode())
