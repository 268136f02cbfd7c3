"""Choosing hyperparameters, by Optuna, without a look at the test data.

    rates = {"server_lr": pflego.tuning.Range(1e-4, 1e-1, log=True)}
    tuning = pflego.tuning.tune({"rounds": 50}, rates, out="runs/tuning")
    tuning.best.values

A part of every client's own training data is set aside. A trial trains on the rest, and is judged by how well everyone
does on that part. One that does worse than the median of those before it did at the same round is given up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from pflego.data.validation import hold_out as set_aside
from pflego.errors import SettingError, UserError, check_positive
from pflego.federation.roster import Federation
from pflego.learning.model import Model
from pflego.report.words import Metric
from pflego.runs.history import HistoryRow
from pflego.runs.record import Table
from pflego.runs.run import Run
from pflego.settings.experiment import Experiment, load_data, seed_of
from pflego.settings.tables import Settings
from pflego.training.callbacks import Callback
from pflego.training.loop import RateWarning
from pflego.tuning.result import Tuning
from pflego.tuning.space import Range, Space, Value, fields_of, holds, read, resolve, usual, words
from pflego.tuning.study import Attempt, GivenUp, importances, search

if TYPE_CHECKING:
    from optuna import Trial

_OF_A_RUN = {"out", "track", "states", "checkpoint_every", "engine"}  # a trial has no folder, and runs here
_MAY_DIFFER = {"device", "data_dir"}  # a search may go on elsewhere
_SAID = (
    "data",
    "algorithm",
    "participation",
    "rounds",
    "seed",
    "evaluate_every",
    "device",
)  # even if not given
_LOOKS = 10  # how often everyone is evaluated in a trial
_WARM_UP = 3  # no trial is given up in the first third of its rounds


def tune(
    settings: Mapping[str, object],
    over: Mapping[str, Space] | None = None,
    *,
    out: str | Path,
    trials: int = 20,
    hold_out: float = 0.2,
    federation: Federation | None = None,
    model: Model | None = None,
    told: Callable[[Attempt, Metric], None] = lambda attempt, metric: None,
) -> Tuning:
    """Search for the hyperparameters that do best on data nobody was trained on.

    Parameters
    ----------
    settings
        Of every trial, by the names of settings files.
    over
        What is tried, by its name: a `Range`, or a list of values. None: the method's rates, a hundredfold to each
        side of what they are, and beside "auto" fixed ones from 0.001 to 3.
    out
        A folder for the search, which goes on where it stopped, and for what comes of it.
    trials
        How many there are to be in all, those given up included.
    hold_out
        The share of every client's training data to judge by.
    federation, model
        Made in Python; if not given, they are made from the settings.
    told
        Hears of every trial that is done.
    """
    check_positive("trials", trials, whole=True)
    given = {key: value for key, value in Settings.of(settings).flat.items() if key not in _OF_A_RUN}
    asked = Settings.of(given)
    algorithm = asked.algorithm
    spaces = resolve(given, usual(algorithm) if over is None else over)
    if not spaces:
        raise SettingError(f"{algorithm.name} has no rate to look for: say what to try, over=... or --over")
    seed = seed_of(asked)
    whole = federation or load_data(asked)
    validation = set_aside(whole, share=hold_out, seed=seed)
    if not any(len(client.y_test) for client in validation):
        raise SettingError(f"no client has enough training samples to set a share of {hold_out:g} aside")
    trial = _Trial(given, validation, model)
    metric = Metric.of(validation.task)
    own = {name: getattr(algorithm, one.parameter) for name, one in fields_of(type(algorithm)).items()}
    start = {name: own.get(name, given.get(name)) for name in spaces}
    inside = all(holds(space, start[name]) for name, space in spaces.items())
    said = {name: _plain(asked.value(name)) for name in _SAID}
    common = {key: value for key, value in {**said, **given}.items() if key not in _MAY_DIFFER}
    attempts = search(
        Path(out) / "trials.json",
        spaces,
        trial.train,
        trials=trials,
        seed=seed,
        maximise=metric.higher_is_better,
        made_of={
            **{
                key: value if isinstance(value, bool | int | float) else str(value)
                for key, value in common.items()
            },
            **{name: words(space) for name, space in spaces.items()},
            **({} if model is None else {"model": model.fingerprint()}),
            "federation": whole.fingerprint(),
            "hold_out": hold_out,
        },
        points=lambda number: start if inside and number == 0 else {},
        warm_up=trial.rounds // _WARM_UP,
        told=lambda attempt: told(attempt, metric),
    )
    if not any(attempt.ended == "finished" for attempt in attempts):
        reason = attempts[-1].reason or f"the last one {attempts[-1].ended}"
        raise SettingError(f"none of {len(attempts)} trials came to an end: {reason}")
    defaults = {key: value for key, value in said.items() if federation is None or key != "data"}
    mattered = importances(attempts, spaces, maximise=metric.higher_is_better)
    tuning = Tuning({**defaults, **given}, spaces, attempts, metric, mattered)
    tuning.write(Path(out))
    return tuning


def _plain(value: object) -> object:
    """Give a value as a settings file has it."""
    return value if isinstance(value, bool | int | float | str | None) else str(value)


@dataclass(frozen=True)
class _Trial:
    """What all trials have in common, and how one is made."""

    given: Table
    federation: Federation  # with validation data in the place of test data
    model: Model | None

    @property
    def rounds(self) -> int:
        return int(str(Settings.of(self.given).value("rounds")))

    def train(self, trial: Trial, values: Mapping[str, Value]) -> float:
        """Train with some values; give everyone's figure after the last round."""
        often = {"evaluate_every": self.given.get("evaluate_every") or max(1, self.rounds // _LOOKS)}
        watch = _Watch(trial, f"everyone_{self.federation.task.metric}", self.rounds)
        try:
            experiment = Experiment.build({**self.given, **often, **values}, federation=self.federation)
            if self.model is not None:
                experiment = replace(experiment, model=self.model)
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", RateWarning
                )  # which rates go uphill is what is to be found out
                experiment.train(callbacks=[watch], progress=False)
        except UserError as error:
            raise GivenUp("refused", str(error)) from error  # values that do not go together
        return watch.last


@dataclass
class _Watch(Callback):
    """Reports a trial's figure as it goes, and gives it up where that is hopeless."""

    trial: Trial
    figure: str
    rounds: int
    last: float = nan

    def on_round(self, run: Run, row: HistoryRow) -> None:
        """Look at the round."""
        if row["participants"] and row["rejected"] == row["participants"]:
            raise GivenUp("diverged")
        if self.figure not in row:
            return
        figure, number = row[self.figure], int(row["round"] or 0)
        if figure is None:
            raise GivenUp("diverged")
        self.last = figure
        self.trial.report(figure, number)
        if number < self.rounds and self.trial.should_prune():
            raise GivenUp("given up")


__all__ = ["Attempt", "Range", "Space", "Tuning", "read", "tune"]
