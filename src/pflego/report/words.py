"""Numbers as a person reads them, and what came out in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import floor, isfinite, log10

from pflego.learning.task import Task
from pflego.runs.record import flat
from pflego.runs.run import Run
from pflego.runs.summary import Summary, ranked_by

_PREFIXES = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k", 1.0: "", 1e-3: "m", 1e-6: "µ"}
_SAME = 1e-9  # figures nearer than this are equal
_STORAGE = {"out", "checkpoint_every", "states"}  # settings that change no figure


@dataclass(frozen=True)
class Metric:
    """How the task's figure is shown: accuracy in per cent, rmse as it is."""

    name: str
    scale: float
    unit: str
    difference: str  # the unit of a difference
    higher_is_better: bool

    @classmethod
    def of(cls, task: Task) -> Metric:
        """Return the metric of a task."""
        if task.metric == "accuracy":
            return cls("accuracy", 100.0, "%", "points", task.higher_is_better)
        return cls(task.metric, 1.0, "", "", task.higher_is_better)

    def shown(self, figure: float | None) -> float | None:
        """Return a figure in the unit it is shown in, without digits nobody reads."""
        if figure is None or not isfinite(figure):
            return None
        return significant(figure * self.scale, 5)

    def text(self, figure: float | None, digits: int = 1) -> str:
        r"""Put a figure in words, which do not come apart at the end of a line.

        >>> Metric("accuracy", 100.0, "%", "points", True).text(0.97251)
        '97.3\xa0%'
        """
        if figure is None:
            return "–"
        if self.unit != "%":
            return number(figure, 2 + digits)
        return f"{100 * figure:.{digits}f}\N{NO-BREAK SPACE}%"

    def gain(self, figure: float | None, other: float | None) -> float | None:
        """Compute how much better a figure is than another, both as shown; None where one is not known."""
        if figure is None or other is None:
            return None
        gain = figure - other if self.higher_is_better else other - figure
        return 0.0 if abs(gain) < _SAME else significant(gain, 5)


def significant(value: float, digits: int) -> float:
    """Round a number to this many significant digits.

    >>> significant(0.0123456, 3), significant(97.2222, 5)
    (0.0123, 97.222)
    """
    if value == 0 or not isfinite(value):
        return value
    return round(value, digits - 1 - floor(log10(abs(value))))


def number(value: float, digits: int = 3) -> str:
    """Format a number with at least this many significant digits.

    >>> number(1.0), number(0.01234), number(54.321), number(12345.6)
    ('1.00', '0.0123', '54.3', '12,346')
    """
    if value == 0 or not isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, digits - 1 - floor(log10(abs(value))))}f}"


def amount(value: float, unit: str) -> str:
    """Format a quantity to three digits, in a multiple of its unit.

    >>> amount(53_120, "B"), amount(1.5e9, "FLOP"), amount(0.0004, "J"), amount(0, "B")
    ('53.1 kB', '1.5 GFLOP', '400 µJ', '0 B')
    """
    value = significant(value, 3)
    for size, prefix in _PREFIXES.items():
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def duration(seconds: float) -> str:
    """Format a time in words.

    >>> duration(0.0042), duration(3.21), duration(200), duration(9000)
    ('4.2 ms', '3.2 s', '3.3 minutes', '2.5 hours')
    """
    if seconds < 1:
        return amount(seconds, "s")
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def count(number: int, what: str) -> str:
    """Format a number of things.

    >>> count(1, "client"), count(1438, "training sample")
    ('1 client', '1,438 training samples')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def method_name(run: Run) -> str:
    """Return a method's name as people write it."""
    return type(run.algorithm).__name__


def names(runs: Sequence[Run]) -> list[str]:
    """Name each of several runs: its method, and what else tells it from the others of that method."""
    called = [method_name(run) for run in runs]
    for method in {name for name in called if called.count(name) > 1}:
        same = [k for k, name in enumerate(called) if name == method]
        settings = {k: flat(runs[k].settings) for k in same}
        known = [key for key in dict.fromkeys(chain(*settings.values())) if key not in _STORAGE]
        differ = [key for key in known if len({str(own.get(key)) for own in settings.values()}) > 1]
        for number, k in enumerate(same, 1):
            own = ", ".join(f"{key} {settings[k].get(key)}" for key in differ[:2])
            folder = runs[k].folder
            called[k] = f"{method}, {own or (f'in {folder}' if folder else f'run {number}')}"
    twice = {name for name in called if called.count(name) > 1}
    return [f"{name} ({k})" if name in twice else name for k, name in enumerate(called, 1)]


def headline(name: str, summary: Summary, metric: Metric, gains: Sequence[float | None]) -> str:
    """Say what came of one run."""
    if summary.everyone is None:
        said = f"{name} trained {count(summary.clients, 'client')} for {count(summary.rounds, 'round')}"
        loss = "" if summary.loss is None else f", to a training loss of {number(summary.loss)}"
        return f"{said}{loss}. How good the models are on test data is not known."
    whose = "its one client’s" if summary.clients == 1 else "its clients’"
    after, figure = f"After {count(summary.rounds, 'round')}", metric.text(summary.everyone)
    if metric.unit == "%":
        said = f"{after} {name} gets {figure} of {whose} test samples right."
    else:
        said = f"{after} {name} predicts {whose} test targets with an {metric.name} of {figure}."
    said = f"{said} {versus(gains, 'than it would alone', 'than they would alone')}".strip()
    if summary.everyone_adapted is None:
        return said
    return f"{said} After each client’s local steps it is {metric.text(summary.everyone_adapted)}."


def comparison_headline(
    called: Sequence[str],
    summaries: Sequence[Summary],
    metric: Metric,
    figures: Sequence[Sequence[float | None]] | None,
) -> str:
    """Say what came of several runs; `figures` are of the same clients in each, if they have the same."""
    known = [k for k, summary in enumerate(summaries) if summary.everyone is not None]
    key = ranked_by([summaries[k] for k in known])
    whose = key.replace("_", " ")
    values = {k: getattr(summaries[k], key) for k in known}
    ranked = sorted(known, key=lambda k: values[k], reverse=metric.higher_is_better)
    if len(ranked) < 2:
        return f"{count(len(called), 'run')} side by side."
    first, second = ranked[:2]
    lead = metric.gain(metric.shown(values[first]), metric.shown(values[second])) or 0.0
    if lead == 0:
        said = (
            f"{called[first]} and {called[second]} do equally well: {metric.text(values[first])} for {whose}."
        )
    else:
        ahead = f"{number(lead, 2)}{f' {metric.difference}' if metric.difference else ''}"
        best = metric.text(values[first])
        said = f"{called[first]} does best, with {best} for {whose}, {ahead} ahead of {called[second]}."
    if figures is None:
        return f"{said} The runs do not have the same clients."
    if key == "everyone_adapted":  # single clients' figures are those of before their steps
        return said
    gains = [metric.gain(a, b) for a, b in zip(figures[first], figures[second], strict=True)]
    return f"{said} {versus(gains, f'than with {called[second]}', f'than with {called[second]}')}".strip()


def versus(gains: Sequence[float | None], than_it: str, than_they: str) -> str:
    """Say how many clients gain and lose.

    >>> versus([3.0, 0.0, -1.0, None], "than it would alone", "than they would alone")
    'Of 3 clients, 1 does better than it would alone, 1 as well and 1 worse.'
    """
    known = [gain for gain in gains if gain is not None]
    if not known:
        return ""
    better, worse = sum(gain > 0 for gain in known), sum(gain < 0 for gain in known)
    same = len(known) - better - worse
    if len(known) == 1:
        than = than_it.replace("than", "as") if same else than_it
        return f"It does {'as well' if same else 'better' if better else 'worse'} {than}."
    parts = [f"1 does better {than_it}" if better == 1 else f"{better:,} do better {than_they}"]
    parts += [f"{number:,} {how}" for number, how in ((same, "as well"), (worse, "worse")) if number]
    return f"Of {len(known):,} clients, {listed(parts)}."


def listed(words: Sequence[str]) -> str:
    """Put words in a row.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
