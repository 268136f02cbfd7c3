"""MLflow: a run with parameters and metrics, on a server or in a file."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pflego.files import make_folder
from pflego.trackers.base import Bookmark, Told, Tracker, hyperparameters

if TYPE_CHECKING:
    from pflego.runs.run import Run

_EVERY_ROUND = "participants"  # a figure that no round is without


class MLflow(Tracker):
    """A run of an MLflow experiment. One that is resumed goes on in it, from the last round it holds.

    Parameters
    ----------
    folder
        For the log, and for the note of which MLflow run it is; mlflow/ in the run's folder if not given.
    uri
        A server's address; if not given, what MLFLOW_TRACKING_URI says, or else the file mlflow.db in the folder.
    experiment
        Its name; if not given, what MLFLOW_EXPERIMENT_NAME says, or else pflego.
    """

    name: ClassVar[str] = "mlflow"
    usual: ClassVar[str] = "mlflow"
    needs: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")

    def __init__(
        self, folder: str | Path | None = None, *, uri: str | None = None, experiment: str | None = None
    ) -> None:
        super().__init__(folder)
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "pflego")

    def open(self, run: Run, place: Path) -> int:
        """Find the run or make it; give the last round it holds."""
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db").setLevel(logging.WARNING)  # that it makes a file is no news
        make_folder(place)
        self._client = MlflowClient(self._uri or f"sqlite:///{place.resolve() / 'mlflow.db'}")
        bookmark = Bookmark(place / "run.json", run)
        if noted := bookmark.read():
            self._run = str(noted["id"])
            self._client.update_run(self._run, status="RUNNING")
            points = self._client.get_metric_history(self._run, _EVERY_ROUND)
            return max((point.step for point in points), default=0)
        self._run = self._new(run, place)
        bookmark.write(id=self._run)
        return 0

    def log(self, told: Told) -> None:
        """Log all figures in one go: a round is there, or it is not."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        figures = told.figures | told.final
        self._client.log_batch(
            self._run, [Metric(key, value, now, told.round) for key, value in figures.items()]
        )

    def close(self, *, finished: bool) -> None:
        """Say how it ended."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")

    def _new(self, run: Run, place: Path) -> str:
        """Create a run with the settings as its parameters, which MLflow never lets change."""
        from mlflow.entities import Param

        known = self._client.get_experiment_by_name(self._experiment)
        if known is not None:
            experiment = known.experiment_id
        else:
            beside = None if self._uri else (place.resolve() / "artifacts").as_uri()
            experiment = self._client.create_experiment(self._experiment, artifact_location=beside)
        name = place.name if run.folder is None else run.folder.name
        made: str = self._client.create_run(experiment, run_name=name).info.run_id
        parameters = [Param(key, str(value)) for key, value in hyperparameters(run).items()]
        self._client.log_batch(made, params=parameters)
        return made
