"""Weights & Biases: a run online, or in files to send later."""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pflego.files import make_folder
from pflego.trackers.base import Bookmark, Told, Tracker, hyperparameters

if TYPE_CHECKING:
    from pflego.runs.run import Run

_LATE = 30  # seconds: by then W&B has written down what it was told


class WandB(Tracker):
    """A run of a W&B project. One that is resumed goes on in it.

    W&B writes late what it is told. So a run that was killed, rather than stopped, tells it of its last rounds again.

    Parameters
    ----------
    folder
        Where W&B makes its folder wandb/; the run's folder if not given.
    project
        Its name; if not given, what WANDB_PROJECT says, or else pflego.
    mode
        "online" or "offline"; if not given, what WANDB_MODE says, or else online.
    """

    name: ClassVar[str] = "wandb"
    usual: ClassVar[str] = "wandb"
    needs: ClassVar[tuple[str, ...]] = ("wandb",)

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        project: str | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        super().__init__(None if folder is None else Path(folder) / "wandb")
        self._project = project or os.environ.get("WANDB_PROJECT", "pflego")
        self._mode = mode

    def open(self, run: Run, place: Path) -> int:
        """Go on with the run that was noted, or begin one."""
        import wandb

        make_folder(place)
        self._bookmark = Bookmark(place / "pflego.json", run)
        noted = self._bookmark.read()
        self._run = wandb.init(
            id=str(noted["id"]) if noted else None,
            resume="allow",
            project=self._project,
            name=None if run.folder is None else run.folder.name,
            dir=place.parent,
            mode=self._mode,
            config=hyperparameters(run),
            allow_val_change=True,  # a run may go on for longer
            reinit="create_new",  # and leaves alone what else runs in this process
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._clients = f"clients_{run.federation.task.metric}"
        self._waiting: deque[tuple[float, int]] = deque()  # when it was told of which round
        known = int(noted.get("round", 0))
        self._note(known)
        return known

    def log(self, told: Told) -> None:
        """Log a round as a step; the clients' figures are a histogram, the final ones the summary."""
        import wandb

        clients = {self._clients: wandb.Histogram(told.clients)} if told.clients else {}
        self._run.log(told.figures | clients, step=told.round, commit=True)
        self._run.summary.update(told.final)
        now = time.monotonic()
        self._waiting.append((now, told.round))
        if now - self._waiting[0][0] > _LATE:
            self._note(self._waiting.popleft()[1])

    def close(self, *, finished: bool) -> None:
        """Wait until everything is sent, or on its way to the disk."""
        self._run.finish(exit_code=0 if finished else 1)
        if self._waiting:
            self._note(self._waiting[-1][1])

    def _note(self, number: int) -> None:
        self._bookmark.write(id=self._run.id, round=number)
