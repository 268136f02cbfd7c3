"""What an attack came to: tables and a picture, one row per rule and one column per lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypeAlias

from pflego.comparison.attack import NOBODY, Trial
from pflego.comparison.tables import Sheet, lines_of, mean_and_spread
from pflego.report.plots import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Figure: TypeAlias = Literal["mean", "worst_tenth"]
_TITLES: dict[Figure, str] = {
    "mean": "of honest clients, mean",
    "worst_tenth": "of honest clients, the worst tenth of them",
}
_DARK = 0.55  # of the colours' range: a number is white below it
_CELL = (0.82, 0.36)  # inches


def sheets(trials: Sequence[Trial]) -> list[Sheet]:
    """Make the tables: the mean over honest clients, and their worst tenth."""
    first, lies = trials[0], _lies(trials)
    scale, unit = _unit(first)
    seeds = len({trial.seed for trial in trials})
    notes = [
        f"{first.share:.0%} of the clients lie; figures are of the others, also where nobody lies, adapted.",
        "worst: the rule's figure under the lie that harms it most.",
        f"Mean ± standard deviation over {seeds} seeds." if seeds > 1 else "One seed. --seeds 5 tells more.",
    ]
    made = []
    for figure, title in _TITLES.items():
        rows = []
        for rule in _rules(trials):
            cells = [mean_and_spread(_values(trials, rule, lie, figure), scale, 1) for lie in lies]
            told = [m for lie in lies if lie != NOBODY if (m := _mean(trials, rule, lie, figure)) is not None]
            worst = (min if first.higher_is_better else max)(told) if told else None
            rows.append([rule, *cells, mean_and_spread([worst], scale, 1)])
        columns = ["nobody lies" if lie == NOBODY else lie for lie in lies]
        made.append(
            Sheet(f"{first.metric}{unit} {title}", [*columns, "worst"], {"": rows}, notes, rows="rule")
        )
    return made


def as_csv(trials: Sequence[Trial]) -> str:
    """Write every trial, unrounded, one line each."""
    return lines_of(
        [{key: value for key, value in vars(trial).items() if key != "figures"} for trial in trials]
    )


def draw(trials: Sequence[Trial], path: Path) -> Path:
    """Draw both tables as maps of colours, with their numbers."""
    rules, lies = _rules(trials), _lies(trials)
    scale, unit = _unit(trials[0])
    with picture(path, 2, columns=1) as (drawn, axes):
        wide, high = _CELL
        drawn.set_size_inches(2.4 + wide * len(lies), 2 * (1.1 + high * len(rules)))
        for axis, (figure, title) in zip(axes, _TITLES.items(), strict=True):
            table = [[_mean(trials, rule, lie, figure) for lie in lies] for rule in rules]
            scaled = [[None if one is None else one * scale for one in row] for row in table]
            _fill(axis, scaled, higher_is_better=trials[0].higher_is_better)
            axis.set_title(f"{trials[0].metric}{unit} {title}", loc="left", fontsize="medium")
            axis.set_yticks(range(len(rules)), rules)
            axis.set_xticks(
                range(len(lies)),
                ["nobody\nlies" if lie == NOBODY else lie.replace("+", "\n+ ") for lie in lies],
            )
    return path


def _fill(axis: Axes, table: Sequence[Sequence[float | None]], *, higher_is_better: bool) -> None:
    """Draw a map in which the better is the brighter."""
    known = [one for row in table for one in row if one is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    axis.grid(visible=False)
    axis.imshow(
        [[low if one is None else one for one in row] for row in table],
        aspect="auto",
        cmap="cividis" if higher_is_better else "cividis_r",
        vmin=low,
        vmax=high if high > low else low + 1,
    )
    for y, row in enumerate(table):
        for x, one in enumerate(row):
            if one is not None:
                dark = abs(one - (low if higher_is_better else high)) < _DARK * (high - low)
                axis.text(x, y, f"{one:.1f}", ha="center", va="center", color="white" if dark else "black")
    axis.axvline(0.5, color="white", linewidth=3)  # between nobody's and the others'
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)


def _rules(trials: Sequence[Trial]) -> list[str]:
    return list(dict.fromkeys(trial.rule for trial in trials))


def _lies(trials: Sequence[Trial]) -> list[str]:
    return list(dict.fromkeys(trial.lie for trial in trials))


def _unit(trial: Trial) -> tuple[float, str]:
    return (100, ", %,") if trial.metric == "accuracy" else (1, "")


def _values(trials: Sequence[Trial], rule: str, lie: str, figure: Figure) -> list[float | None]:
    return [getattr(trial, figure) for trial in trials if trial.rule == rule and trial.lie == lie]


def _mean(trials: Sequence[Trial], rule: str, lie: str, figure: Figure) -> float | None:
    known = [one for one in _values(trials, rule, lie, figure) if one is not None]
    return fmean(known) if known else None
