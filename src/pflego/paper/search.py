"""The paper's search for the best rates, by Optuna over the published grid.

The paper does not say on which data it chose; here it is a fifth of each client's own training data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pflego.comparison import LAST
from pflego.data.validation import hold_out
from pflego.experiment import Experiment, load_data
from pflego.files import make_folder
from pflego.paper import published
from pflego.paper.cells import Cell

if TYPE_CHECKING:
    from optuna import Study, Trial


@dataclass(frozen=True)
class Found:
    """The best rates of a method, and what they came to on the validation data, in per cent."""

    preset: str
    method: str
    rates: dict[str, float]
    accuracy: float
    trials: int


def grid(preset: str, method: str) -> dict[str, Sequence[float]]:
    """The rates the paper tried."""
    tried = published().search
    rates: dict[str, Sequence[float]] = {
        "client_lr": tried["client_lr_omniglot" if preset == "omniglot" else "client_lr"]
    }
    if method in ("pflego", "fedrecon"):
        rates["server_lr"] = tried["server_lr"]
    return rates


def search(
    preset: str,
    method: str,
    folder: Path,
    *,
    seed: int = 1,
    trials: int | None = None,
    changes: dict[str, object] | None = None,
) -> Found:
    """Try the grid, or some of it, and go on where an earlier search stopped."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("for a search: pip install 'pflego[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = Cell(preset, method, seed, changes or {}).settings()
    federation = hold_out(load_data(settings), seed=seed)
    space = {name: list(values) for name, values in grid(preset, method).items()}

    def objective(trial: Trial) -> float:
        rates = {name: trial.suggest_categorical(name, values) for name, values in space.items()}
        run = Experiment.build({**settings, **rates}, federation=federation).train(progress=False)
        figures = [value for row in run.history if (value := row.get("participants_accuracy")) is not None]
        return fmean(figures[-LAST:])

    make_folder(folder)
    study: Study = optuna.create_study(
        study_name=f"{preset} {method} seed {seed} {sorted((changes or {}).items())}",
        storage=f"sqlite:///{folder / 'search.db'}",
        sampler=optuna.samplers.GridSampler(space, seed=seed),
        direction="maximize",
        load_if_exists=True,
    )
    wanted = prod(len(values) for values in space.values())
    left = min(trials or wanted, wanted) - len(study.trials)
    if left > 0:
        study.optimize(objective, n_trials=left)
    return Found(preset, method, dict(study.best_params), 100 * study.best_value, len(study.trials))
