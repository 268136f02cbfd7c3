"""What watches a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pflego.runs.history import HistoryRow
    from pflego.runs.run import Run


class Callback:
    """Told of a run's start, rounds and end. Override what is wanted."""

    def on_start(self, run: Run) -> None:
        """React to the start of training; `run.history` holds the rounds done before, if it is resumed."""

    def on_round(self, run: Run, row: HistoryRow) -> None:
        """React to a round that is done and written down."""

    def on_end(self, run: Run) -> None:
        """React to the end of training, finished or not."""


@contextmanager
def watching(callbacks: Sequence[Callback], run: Run) -> Iterator[None]:
    """Tell callbacks of the start, and of the end whatever happens."""
    for callback in callbacks:
        callback.on_start(run)
    try:
        yield
    finally:
        for callback in callbacks:
            callback.on_end(run)
