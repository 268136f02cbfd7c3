"""What every tracker is told, and what it does when its log fails."""

from __future__ import annotations

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pflego.errors import UserError
from pflego.files import make_folder, write_atomically
from pflego.runs.history import HistoryRow
from pflego.runs.record import flat
from pflego.runs.summary import Summary
from pflego.training.callbacks import Callback

if TYPE_CHECKING:
    from pflego.runs.run import Run


class TrackerWarning(UserWarning):
    """A log cannot be written any more; the training goes on without it."""


@dataclass(frozen=True)
class Told:
    """What a tracker is told of a round."""

    round: int
    row: HistoryRow  # of the history
    clients: list[float]  # every client's figure, where everyone was evaluated
    final: dict[str, float]  # of the whole run, after its last round

    @property
    def figures(self) -> dict[str, float]:
        """The row's, where they are known."""
        return {key: value for key, value in self.row.items() if key != "round" and value is not None}


class Tracker(Callback, ABC):
    """Keeps a log of a run: its settings as hyperparameters, every round's figures, the final ones.

    The run's history is the truth, and the log is brought up to it at the start. So a run that is resumed goes on in
    the same log, without a gap and without a round twice. What goes wrong in a log is said once, as a
    `TrackerWarning`, and does not stop the training.

    Parameters
    ----------
    place
        Where the log is; in the run's folder if not given.
    """

    name: ClassVar[str]  # in settings, on the command line and in the extra that installs it
    usual: ClassVar[str]  # where the log is in a run's folder
    needs: ClassVar[Sequence[str]] = ()  # modules

    def __init__(self, place: str | Path | None = None) -> None:
        if [module for module in self.needs if find_spec(module) is None]:
            raise UserError(
                f"{self.name} is not installed: pip install 'pflego[{self.name}]', or track without it"
            )
        self._place = None if place is None else Path(place)
        self._works = False
        self._known = 0  # the last round that the log holds

    @abstractmethod
    def open(self, run: Run, place: Path) -> int:
        """Begin the log, or go on with it; give the last round it need not be told of."""

    @abstractmethod
    def log(self, told: Told) -> None:
        """Write a round down."""

    @abstractmethod
    def close(self, *, finished: bool) -> None:
        """End the log; `finished` says whether all rounds were done."""

    def on_start(self, run: Run) -> None:
        """Open the log and bring it up to the history."""
        place = self._place
        if place is None:
            if run.folder is None:
                raise UserError(
                    f"say where the {self.name} log goes, or give the run a folder: out=..., or --out"
                )
            place = run.folder / self.usual
        self._works = True
        with self._forgiving():
            self._known = self.open(run, place)
            for row in run.history:
                self._tell(run, row)

    def on_round(self, run: Run, row: HistoryRow) -> None:
        """Log the round, unless the log has failed."""
        if self._works:
            with self._forgiving():
                self._tell(run, row)

    def on_end(self, run: Run) -> None:
        """Close the log, unless it has failed."""
        if self._works:
            with self._forgiving():
                self.close(finished=len(run.history) == run.plan.rounds)

    def _tell(self, run: Run, row: HistoryRow) -> None:
        number = int(row["round"] or 0)
        if number > self._known:
            self.log(told_of(run, row, number))

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever somebody else's library does: a run is worth more than its log
            self._works = False
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"the {self.name} log has failed and goes no further; the run does: {reason}",
                TrackerWarning,
                stacklevel=5,
            )


def told_of(run: Run, row: HistoryRow, number: int) -> Told:
    """Collect what a tracker is told of a round."""
    return Told(
        number,
        row,
        [figure for figure in run.evaluations.get(number, []) if figure is not None],
        final_figures(run) if number == run.plan.rounds else {},
    )


def final_figures(run: Run) -> dict[str, float]:
    """Return the figures a finished run came to, as far as they are numbers."""
    known = asdict(Summary.of(run))
    return {f"final/{key}": value for key, value in known.items() if type(value) in (int, float)}


def hyperparameters(run: Run) -> dict[str, object]:
    """Give a run's settings, but for those that are not set and the record nobody sets."""
    return flat(run.settings)


class Bookmark:
    """A small file that says which log elsewhere is a run's, and how far it has come."""

    def __init__(self, path: Path, run: Run) -> None:
        self._path = path
        self._folder = None if run.folder is None else run.folder.resolve()
        self._begun = bool(run.history)

    def read(self) -> dict[str, str | int]:
        """Read what was noted of this run; nothing if the note is of another run with a log in that place."""
        if not self._path.exists() or self._folder is None:
            return {}
        noted: dict[str, str | int] = json.loads(self._path.read_text())
        inside = self._path.resolve().is_relative_to(self._folder)
        return noted if inside or (self._begun and noted["run"] == str(self._folder)) else {}

    def write(self, **facts: str | int) -> None:
        """Note it, for whoever goes on."""
        make_folder(self._path.parent)
        write_atomically(self._path, (json.dumps({**facts, "run": str(self._folder)}) + "\n").encode())
