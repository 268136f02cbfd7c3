"""The paper's search for the best rates, by Optuna over the published grid.

The paper does not say on which data it chose; here it is a fifth of each client's own training data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pflego.data.validation import hold_out
from pflego.paper import PRESETS, methods, published
from pflego.paper import preset as of
from pflego.paper.cells import Cell
from pflego.randomness import numpy_generator
from pflego.runs.summary import LAST
from pflego.settings.experiment import Experiment, load_data
from pflego.tuning.space import Spaces, Value
from pflego.tuning.study import GivenUp
from pflego.tuning.study import search as look

if TYPE_CHECKING:
    from optuna import Trial


@dataclass(frozen=True)
class Found:
    """The best rates of a method, and what they came to on the validation data, in per cent."""

    preset: str
    method: str
    rates: dict[str, float]
    accuracy: float
    trials: int


def grid(preset: str, method: str) -> dict[str, Sequence[float]]:
    """Return the rates the paper tried; for PFLEGO and mu, of which it names no grid, also those it published as best.

    >>> grid("mnist-high", "ditto")["mu"]
    [0.25, 0.5, 1.0]
    """
    tried = published().search
    rates: dict[str, Sequence[float]] = {
        "client_lr": tried["client_lr_omniglot" if preset == "omniglot" else "client_lr"]
    }
    if method == "pflego":
        rates["client_lr"] = sorted({*rates["client_lr"], *_best("pflego", "client_lr")})
    if method in ("pflego", "fedrecon"):
        rates["server_lr"] = tried["server_lr"]
    if mus := _best(method, "mu"):
        rates["mu"] = mus
    return rates


def _best(method: str, name: str) -> list[float]:
    """List the values of a setting that are the best of a method in one of the paper's experiments."""
    found = {of(each, method).get(name) for each in PRESETS if method in methods(each)}
    return sorted(value for value in found if isinstance(value, float))


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
    cell = Cell(preset, method, seed, {key: v for key, v in (changes or {}).items() if key != "data_dir"})
    settings = {**cell.settings(), **(changes or {})}
    federation = hold_out(load_data(settings), seed=seed)
    spaces: Spaces = {name: list(values) for name, values in grid(preset, method).items()}
    points = [dict(zip(spaces, values, strict=True)) for values in product(*grid(preset, method).values())]
    order = numpy_generator(seed, "grid").permutation(len(points))

    def attempt(trial: Trial, rates: Mapping[str, Value]) -> float:
        run = Experiment.build({**settings, **rates}, federation=federation).train(progress=False)
        figures = [value for row in run.history if (value := row.get("participants_accuracy")) is not None]
        if not figures:
            raise GivenUp("diverged")
        return fmean(figures[-LAST:])

    done = look(
        folder / "search" / f"{cell.name}.json",
        spaces,
        attempt,
        trials=min(trials or len(points), len(points)),
        seed=seed,
        maximise=True,
        made_of={"grid": grid(preset, method)},
        points=lambda number: points[order[number]],
    )
    best = max(done, key=lambda attempt: attempt.figure or 0.0)
    rates = {name: float(value) for name, value in best.values.items()}
    return Found(preset, method, rates, 100 * (best.figure or 0.0), len(done))
