"""The paper's search for the best rates, by Optuna over the published grid.

The paper does not say on which data it chose; here it is a fifth of each client's own training data. Rivals' rates (and
mu) are searched together. PFLEGO's are searched as the appendix has it: first rho, with beta = 1/L_i, then beta at that
rho. The appendix takes beta from (0, 2/L), L not said; here shares of 2/L as measured are tried, and beside them the
paper's grid and the values it published as best, some of which lie above that bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

from pflego.data.validation import hold_out
from pflego.federation.roster import Federation
from pflego.learning import theory
from pflego.learning.problems import Problems
from pflego.paper import PRESETS, methods, published
from pflego.paper import preset as of
from pflego.paper.cells import Cell
from pflego.randomness import numpy_generator
from pflego.report.words import significant
from pflego.runs.summary import LAST
from pflego.settings.experiment import Experiment, load_data
from pflego.tuning.space import Spaces, Value
from pflego.tuning.study import Attempt, GivenUp
from pflego.tuning.study import search as look

if TYPE_CHECKING:
    from optuna import Trial


Grid: TypeAlias = Mapping[str, Sequence[float]]

_SHARES = (0.25, 0.5, 0.75, 0.95)  # of 2/L


@dataclass(frozen=True)
class Found:
    """The best rates of a method, and what they came to on the validation data, in per cent."""

    preset: str
    method: str
    rates: dict[str, Value]
    accuracy: float
    trials: int
    bound: float | None = None  # 2/L at the start, the least of any client, where beta was searched below it


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
    whole = grid(preset, method)
    bound = None
    stages: list[Grid] = [whole]
    rates: dict[str, Value] = {}
    if method == "pflego":
        bound = client_bound(Experiment.build(settings, federation=federation))
        below = [significant(share * bound, 3) for share in _SHARES]
        stages = [
            {"server_lr": whole["server_lr"]},
            {"client_lr": sorted({*whole["client_lr"], *below})},
        ]
        rates = {"client_lr": "auto"}
    best, made = 0.0, 0
    for stage in stages:
        left = None if trials is None else trials - made
        if left == 0:
            break
        file = folder / "search" / f"{cell.name}{',' + '+'.join(stage) if len(stages) > 1 else ''}.json"
        done = _try(stage, settings, federation, file, beside=dict(rates), seed=seed, trials=left)
        found = max(done, key=lambda attempt: attempt.figure or 0.0)
        rates |= found.values
        best, made = found.figure or 0.0, made + len(done)
    return Found(preset, method, rates, 100 * best, made, bound)


def client_bound(experiment: Experiment) -> float:
    """Compute 2/L for the heads at the start: the least of any client."""
    problems = Problems(experiment.federation, experiment.model)
    shared = experiment.model.weights()
    return min(
        theory.client_bound(
            problem.head_smoothness(problem.new_head("zeros", 0), problem.forward(shared).features)
        )
        for problem in (problems[position] for position in range(len(experiment.federation)))
    )


def _try(
    stage: Grid,
    settings: Mapping[str, object],
    federation: Federation,
    file: Path,
    *,
    beside: Mapping[str, Value],
    seed: int,
    trials: int | None,
) -> list[Attempt]:
    """Try the points of a grid, beside rates that are fixed, in a random order that the seed decides."""
    spaces: Spaces = {name: list(values) for name, values in stage.items()}
    points = [dict(zip(spaces, values, strict=True)) for values in product(*stage.values())]
    order = numpy_generator(seed, "grid").permutation(len(points))

    def attempt(trial: Trial, rates: Mapping[str, Value]) -> float:
        run = Experiment.build({**settings, **beside, **rates}, federation=federation).train(progress=False)
        figures = [value for row in run.history if (value := row.get("participants_accuracy")) is not None]
        if not figures:
            raise GivenUp("diverged")
        return fmean(figures[-LAST:])

    return look(
        file,
        spaces,
        attempt,
        trials=min(trials or len(points), len(points)),
        seed=seed,
        maximise=True,
        made_of={"grid": stage, "beside": beside},
        points=lambda number: points[order[number]],
    )
