"""A search by Optuna, one trial after the other, kept in a file from which it goes on.

The file is written anew after every trial. What a trial tries is a function of the seed, its number and the trials
before it, so a search that was interrupted ends like one that was not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from pflego.errors import FolderError, UserError
from pflego.files import make_folder, write_atomically
from pflego.randomness import entropy
from pflego.tuning.space import Range, Spaces, Value

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution

Ending = Literal["finished", "given up", "diverged", "refused"]

_FINISHED: Ending = "finished"
_AT_RANDOM = 5  # trials before the search learns from those before
_UNPRUNED = 5  # trials that are finished whatever they look like
_ENOUGH = 10  # finished trials, to say what mattered


@dataclass(frozen=True)
class Attempt:
    """A trial: what was tried, and what it came to on the validation data."""

    number: int  # in the order they were made, from 1
    values: dict[str, Value]
    ended: Ending
    figure: float | None  # the last one known
    curve: list[tuple[int, float]]  # (round, figure), where it was reported
    seconds: float
    reason: str = ""  # why it was refused


class GivenUp(Exception):  # noqa: N818 - no error
    """A trial that is not worth its rounds."""

    def __init__(self, ended: Ending, reason: str = "") -> None:
        super().__init__(reason)
        self.ended, self.reason = ended, reason


def search(
    file: Path,
    spaces: Spaces,
    attempt: Callable[[Trial, dict[str, Value]], float],
    *,
    trials: int,
    seed: int,
    maximise: bool,
    made_of: Mapping[str, object],
    points: Callable[[int], Mapping[str, object]] = lambda number: {},
    warm_up: int | None = None,
    told: Callable[[Attempt], None] = lambda attempt: None,
) -> list[Attempt]:
    """Make trials until there are `trials`; give all of them.

    Parameters
    ----------
    file
        Where they are kept. Those that are there already are not made again.
    attempt
        Makes a trial with some values and gives its figure; raises `GivenUp` where that makes no sense.
    made_of
        What a search must have in common with the one in the file to go on with it.
    points
        What trial number k tries, from 0; where it says nothing, the search chooses.
    warm_up
        The rounds in which no trial is to be given up; after them, one that does worse than the median of those before
        it did at the same round is told so by `trial.should_prune()`. None: no trial ever is.
    told
        Hears of every trial that is done.
    """
    optuna = _optuna()
    done = _read(file, made_of)
    study = _study(done, spaces, maximise=maximise)
    if warm_up is not None:
        study.pruner = optuna.pruners.MedianPruner(n_startup_trials=_UNPRUNED, n_warmup_steps=warm_up)
    for number in range(len(done), trials):
        study.sampler = optuna.samplers.TPESampler(
            seed=entropy(seed, "trial", round_number=number) % 2**32, n_startup_trials=_AT_RANDOM
        )
        if point := points(number):
            study.enqueue_trial(dict(point))
        trial = study.ask(_distributions(spaces))
        began, ended, reason = time.monotonic(), _FINISHED, ""
        try:
            known = study.tell(trial, attempt(trial, trial.params))
        except GivenUp as given_up:
            ended, reason = given_up.ended, given_up.reason
            known = study.tell(trial, state=optuna.trial.TrialState.PRUNED)  # at the last value it reported
        curve, seconds = sorted(known.intermediate_values.items()), time.monotonic() - began
        done.append(Attempt(number + 1, known.params, ended, known.value, curve, seconds, reason))
        _write(file, made_of, done)
        told(done[-1])
    return done


def importances(done: Sequence[Attempt], spaces: Spaces, *, maximise: bool) -> dict[str, float]:
    """Compute how much each hyperparameter mattered, as shares of one, the most first; {} if unknown."""
    finished = [attempt for attempt in done if attempt.ended == _FINISHED]
    if len(spaces) < 2 or len(finished) < _ENOUGH or len({attempt.figure for attempt in finished}) == 1:
        return {}

    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    study = _study(finished, spaces, maximise=maximise)
    shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {name: float(share) for name, share in shares.items()}


def _study(done: Sequence[Attempt], spaces: Spaces, *, maximise: bool) -> Study:
    """Make a study that knows of some trials."""
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study: Study = optuna.create_study(
        direction="maximize" if maximise else "minimize", pruner=optuna.pruners.NopPruner()
    )
    states = optuna.trial.TrialState
    for attempt in done:
        study.add_trial(
            optuna.trial.create_trial(
                state=states.COMPLETE if attempt.ended == _FINISHED else states.PRUNED,
                value=attempt.figure,
                params=attempt.values,
                distributions=_distributions(spaces),
                intermediate_values=dict(attempt.curve),
            )
        )
    return study


def _distributions(spaces: Spaces) -> dict[str, BaseDistribution]:
    """Turn spaces into Optuna's distributions."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    ways: dict[str, BaseDistribution] = {}
    for name, space in spaces.items():
        if not isinstance(space, Range):
            ways[name] = CategoricalDistribution(space)
        elif space.whole:
            ways[name] = IntDistribution(int(space.low), int(space.high), log=space.log)
        else:
            ways[name] = FloatDistribution(space.low, space.high, log=space.log)
    return ways


def _read(file: Path, made_of: Mapping[str, object]) -> list[Attempt]:
    """Read the trials of a file, if there is one; refuse those of another search."""
    if not file.exists():
        return []
    try:
        kept = json.loads(file.read_text())
        known, rows = kept["made_of"], kept["trials"]
        done = [Attempt(**{**row, "curve": [(t, value) for t, value in row["curve"]]}) for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FolderError(f"{file} is damaged or no search's, and was left as it is: {error}") from error
    asked = json.loads(json.dumps(made_of))
    differences = [
        f"{key} was {known.get(key, 'not set')!r}, is now {asked.get(key, 'not set')!r}"
        for key in sorted(known.keys() | asked.keys())
        if known.get(key) != asked.get(key)
    ]
    if differences:
        raise UserError(f"{file} holds another search: {'; '.join(differences)}; choose another folder")
    return done


def _write(file: Path, made_of: Mapping[str, object], done: Sequence[Attempt]) -> None:
    make_folder(file.parent)
    kept = {"made_of": made_of, "trials": [asdict(attempt) for attempt in done]}
    write_atomically(file, (json.dumps(kept, indent=1) + "\n").encode())


def _optuna() -> ModuleType:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise UserError("for a search: pip install 'pflego[search]'") from error
    return optuna
