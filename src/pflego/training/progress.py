"""A run as it goes: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from pflego.training.callbacks import Callback

if TYPE_CHECKING:
    from pflego.runs.history import HistoryRow
    from pflego.runs.run import Run

_SECONDS_BETWEEN_LINES = 5.0


class Progress(Callback):
    """Shows the round, the loss, the metric and the time left, on standard error."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )

    @staticmethod
    def in_terminal() -> bool:
        """Tell whether standard error is a terminal."""
        return Console(stderr=True).is_terminal

    def on_start(self, run: Run) -> None:
        """Begin where the run begins."""
        self._rounds = run.plan.rounds
        self._done = self._first = len(run.history)
        self._began = self._spoke = time.monotonic()
        if self._console.is_terminal:
            label = run.algorithm.name
            self._task = self._bar.add_task(label, total=self._rounds, completed=self._done, figures="")
            self._bar.start()

    def on_round(self, run: Run, row: HistoryRow) -> None:
        """Move on; in plain lines, speak up every few seconds."""
        self._done += 1
        figures = _figures(row, run.federation.task.metric)
        if self._console.is_terminal:
            self._bar.update(self._task, advance=1, figures=figures)
            return
        now = time.monotonic()
        if self._done == self._rounds or now - self._spoke >= _SECONDS_BETWEEN_LINES:
            self._spoke = now
            left = (now - self._began) / (self._done - self._first) * (self._rounds - self._done)
            self._console.print(
                f"{run.algorithm.name}: round {self._done} of {self._rounds}, {figures}, {left:.0f} s left",
                highlight=False,
                soft_wrap=True,
            )

    def on_end(self, run: Run) -> None:
        """Leave the terminal as it was."""
        if self._console.is_terminal:
            self._bar.stop()


def _figures(row: HistoryRow, metric: str) -> str:
    """Put the numbers of a round in words."""
    shown = []
    if (loss := row["loss"]) is not None:
        shown.append(f"loss {loss:.4f}")
    if (figure := row[f"participants_{metric}"]) is not None:
        shown.append(f"{metric} {figure:.4f}")
    if (epsilon := row.get("epsilon")) is not None:
        shown.append(f"epsilon {epsilon:.3g}")
    if row["participants"] and row["rejected"] == row["participants"]:
        shown.append(f"all {row['rejected']} updates rejected: not finite")
    if row["refused"]:
        shown.append("the server's step refused: not finite")
    return ", ".join(shown) or ("no reply arrived" if row["participants"] else "nobody took part")
