"""Each method's main rate, chosen by the same short search: nobody is compared at a rate made for other data.

A fifth of every client's own training data is set aside. Each of a few rates is tried for a quarter of the rounds on
the rest, and judged by everyone's figure on that fifth, adapted: the figure that methods are ranked by. The main rate
is the server's, where a method has one, and the clients' elsewhere. What was given stays as it is.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Literal, TypeAlias

from pflego import paper
from pflego.algorithms.base import Algorithm
from pflego.algorithms.registry import spelling
from pflego.data.validation import hold_out
from pflego.errors import FolderError, SettingError
from pflego.federation.roster import Federation
from pflego.files import make_folder, write_atomically
from pflego.report.words import significant
from pflego.settings.experiment import Experiment
from pflego.settings.tables import Settings, known
from pflego.training.loop import RateWarning
from pflego.tuning.space import FIXED_RATES, Value, fields_of

Rates: TypeAlias = Literal["search", "given", "paper"]

_PARTS = (1.0, 0.03, 0.1, 0.3, 3.0, 10.0, 30.0)  # of a rate that is a number, which is tried first
_SHARE = 4  # a trial has a quarter of the rounds,
_LEAST = 5  # but at least five
_OF_A_RUN = {"out", "track", "checkpoint_every", "keep", "states"}


@dataclass(frozen=True)
class Chosen:
    """The rate that a search chose for a method, and what the search cost."""

    method: str
    name: str
    value: Value
    tried: list[tuple[Value, float | None]]  # rate, figure on the data set aside; None: it diverged
    rounds: int  # of one trial
    passes: float  # of a client that always took part, forward and backward, in all trials
    seconds: float

    def __str__(self) -> str:
        tried = ", ".join(str(value) for value, _ in self.tried)
        return (
            f"{self.method}: {self.name} {self.value} (of {tried}), for {len(self.tried)} x {self.rounds} rounds, "
            f"{self.passes:g} passes of a client, {self.seconds:.1f} s"
        )


def main_rate(algorithm: Algorithm) -> str | None:
    """Name a method's main rate: the server's, or the clients'; of a guest's method the first that is tuned.

    >>> import pflego
    >>> main_rate(pflego.PFLEGO()), main_rate(pflego.FedAvg())
    ('server_lr', 'client_lr')
    """
    tuned = [name for name, one in fields_of(type(algorithm)).items() if one.tuned]
    return next((name for name in ("server_lr", "client_lr", *tuned) if name in tuned), None)


def candidates(value: object) -> list[Value]:
    """List the rates to try, the present one first.

    >>> candidates(0.003)
    [0.003, 9e-05, 0.0003, 0.0009, 0.009, 0.03, 0.09]
    """
    if isinstance(value, int | float) and value > 0:
        return [significant(part * value, 2) for part in _PARTS]
    return [value, *FIXED_RATES] if isinstance(value, str) else []


def choose_rate(
    settings: Settings,
    given: Mapping[str, object],
    federation: Federation,
    folder: Path,
    *,
    called: str | None = None,
) -> Chosen | None:
    """Search for a method's main rate, or read what a search found; None where the rate was given, or there is none."""
    algorithm = settings.algorithm
    name = main_rate(algorithm)
    if name is None or name in given:
        return None
    rates = candidates(getattr(algorithm, fields_of(type(algorithm))[name].parameter))
    if not rates:
        return None
    rounds = int(str(settings.value("rounds")))
    short = min(rounds, max(_LEAST, rounds // _SHARE))
    base = {key: value for key, value in settings.flat.items() if key not in _OF_A_RUN}
    base |= {"rounds": short, "evaluate_every": 0, "evaluate_adapted": True}
    made_of = json.loads(json.dumps([base, rates, federation.fingerprint()], default=str))
    file = folder / "rate.json"
    if (found := _read(file, made_of)) is not None:
        return found
    held_out = hold_out(federation, seed=_seed(settings))
    chosen = _search(called or spelling(settings.kind), base, name, rates, held_out, short)
    make_folder(folder)
    kept = {"made_of": made_of, "chosen": asdict(chosen)}
    write_atomically(file, (json.dumps(kept, indent=1) + "\n").encode())
    return chosen


def _search(
    method: str,
    base: Mapping[str, object],
    name: str,
    rates: Sequence[Value],
    validation: Federation,
    rounds: int,
) -> Chosen:
    """Try all rates; of several that are equally good the first is chosen."""
    task, began, passes = validation.task, time.monotonic(), 0.0
    tried: list[tuple[Value, float | None]] = []
    for rate in rates:
        experiment = Experiment.build({**base, name: rate}, federation=validation)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RateWarning)  # which rates go uphill is what is to be found out
            history = experiment.train(progress=False).history
        figure = history[-1].get(f"everyone_adapted_{task.metric}")
        tried.append((rate, figure if figure is not None and isfinite(figure) else None))
        passes += sum((row["forward_passes"] or 0) + (row["backward_passes"] or 0) for row in history)
    rank = _rank(higher_is_better=task.higher_is_better)
    best, _ = max(tried, key=lambda one: rank(one[1]))
    return Chosen(method, name, best, tried, rounds, passes, time.monotonic() - began)


def _rank(*, higher_is_better: bool) -> Callable[[float | None], float]:
    sign = 1 if higher_is_better else -1
    return lambda figure: -inf if figure is None else sign * figure


def _read(file: Path, made_of: object) -> Chosen | None:
    """Read what a search came to; a search for something else is made again."""
    if not file.exists():
        return None
    try:
        kept = json.loads(file.read_text())
        if kept["made_of"] != made_of:
            return None
        chosen = kept["chosen"]
        return Chosen(**{**chosen, "tried": [(value, figure) for value, figure in chosen["tried"]]})
    except (ValueError, TypeError, KeyError) as error:
        raise FolderError(f"{file} is damaged, or no search's: remove it to search again") from error


def of_the_paper(settings: Settings) -> dict[str, object]:
    """Give a method's settings in the paper's experiment with the same data and classes per client.

    A method that the paper does not have keeps its own.
    """
    data, held = settings.value("data"), settings.value("classes_per_client")
    method = spelling(settings.kind)
    for name in paper.PRESETS:
        first = paper.preset(name, paper.methods(name)[0])
        if first["data"] == data and first.get("classes_per_client") == held:
            if method not in paper.methods(name):
                return {}
            own = known("method", settings.kind).keys() - {"algorithm"}
            return {key: value for key, value in paper.preset(name, method).items() if key in own}
    raise SettingError(
        f"the paper has no experiment with data {data} and classes_per_client {held}: see pflego paper settings, "
        "or take --rates search or given"
    )


def _seed(settings: Settings) -> int:
    return int(str(settings.value("seed")))
