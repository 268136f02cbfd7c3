"""Logs that people already look at: TensorBoard, MLflow, Weights & Biases, or a table.

run = pflego.train(..., callbacks=[pflego.trackers.TensorBoard("logs")])
"""

from __future__ import annotations

from pathlib import Path

from pflego.errors import SettingError, unknown
from pflego.trackers.base import Told, Tracker, TrackerWarning
from pflego.trackers.csv import CSV
from pflego.trackers.mlflow import MLflow
from pflego.trackers.tensorboard import TensorBoard
from pflego.trackers.wandb import WandB

TRACKERS: dict[str, type[CSV | MLflow | TensorBoard | WandB]] = {
    kind.name: kind for kind in (TensorBoard, MLflow, WandB, CSV)
}


def choose(track: object) -> list[Tracker]:
    """Make the trackers of a list of names, or of one in a text, with their logs in the run's folder.

    >>> [tracker.name for tracker in choose("csv")]
    ['csv']
    """
    names = track.split(",") if isinstance(track, str) else track
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingError(f"track must be a list of {', '.join(TRACKERS)}, not {track!r}")
    chosen = dict.fromkeys(name.strip().lower() for name in names if name.strip())
    for name in chosen:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
    return [TRACKERS[name]() for name in chosen]


def begun(folder: Path) -> list[str]:
    """Name the trackers that have a log in a run's folder."""
    return [name for name, kind in TRACKERS.items() if (folder / kind.usual).exists()]


__all__ = [
    "CSV",
    "TRACKERS",
    "MLflow",
    "TensorBoard",
    "Told",
    "Tracker",
    "TrackerWarning",
    "WandB",
    "begun",
    "choose",
]
