"""TensorBoard: scalars, a histogram of the clients, and the settings as hyperparameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pflego.trackers.base import Told, Tracker, hyperparameters

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

    from pflego.runs.run import Run

_SECONDS = 10  # between what is written and what is seen


class TensorBoard(Tracker):
    """Event files to look at with `tensorboard --logdir FOLDER`.

    A run that is resumed hides what the folder's older files say and writes its history anew.

    Parameters
    ----------
    place
        The folder they are in; tensorboard/ in the run's folder if not given.
    """

    name: ClassVar[str] = "tensorboard"
    usual: ClassVar[str] = "tensorboard"
    needs: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def open(self, run: Run, place: Path) -> int:
        """Open a new file, which takes the place of older ones."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        metric = run.federation.task.metric
        self._clients = f"clients_{metric}"
        self._writer = SummaryWriter(str(place), purge_step=1, flush_secs=_SECONDS)
        plain = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in hyperparameters(run).items()
        }
        judged = dict.fromkeys(
            [f"everyone_{metric}", f"participants_{metric}", "loss"], 0
        )  # by the last point
        experiment, begin, self._end = hparams(plain, judged)  # type: ignore[no-untyped-call]
        self._summarise(experiment)
        self._summarise(begin)
        return 0

    def log(self, told: Told) -> None:
        """Add a point to every curve, and the clients' figures side by side."""
        for key, value in (told.figures | told.final).items():
            self._writer.add_scalar(key, value, told.round)
        if told.clients:
            self._writer.add_histogram(self._clients, np.array(told.clients), told.round)

    def close(self, *, finished: bool) -> None:
        """Write what is still waiting."""
        if finished:
            self._summarise(self._end)
        self._writer.close()

    def _summarise(self, what: Summary) -> None:
        self._writer.file_writer.add_summary(what, 0)  # type: ignore[attr-defined]  # torch takes it for None
