"""A search at a glance: every trial against each hyperparameter, and all of them over the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflego.report.plots import picture
from pflego.tuning.result import Tuning
from pflego.tuning.space import Range
from pflego.tuning.study import Attempt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FINISHED, _ENDED_EARLY, _BEST = "C0", "0.6", "C1"
_SPREAD = 0.4  # of the trials of one value of a list, in steps between values


def draw(tuning: Tuning, path: Path) -> Path:
    """Draw it into a file; its ending says the format."""
    seen = [attempt for attempt in tuning.ranked()[::-1] if attempt.curve]  # the best last, above the others
    panels = len(tuning.spaces) + 1
    with picture(path, panels, columns=2 if panels == 4 else 3) as (figure, axes):
        for axis, name in zip(axes, tuning.spaces, strict=False):
            _against(axis, tuning, seen, name)
        _over_rounds(axes[-1], tuning, seen)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
    return path


def _against(axis: Axes, tuning: Tuning, seen: list[Attempt], name: str) -> None:
    """Draw every trial's figure against one hyperparameter."""
    places = _places(tuning, seen, name)
    looks: dict[str, dict[str, Any]] = {
        "ended early": {"facecolors": "none", "edgecolors": _ENDED_EARLY, "s": 28},
        "finished": {"color": _FINISHED, "alpha": 0.7, "s": 28},
        "best": {"color": _BEST, "marker": "*", "s": 150},
    }
    for kind, look in looks.items():
        shown = [k for k, attempt in enumerate(seen) if _kind(tuning, attempt) == kind]
        figures = [seen[k].curve[-1][1] * tuning.metric.scale for k in shown]
        axis.scatter([places[k] for k in shown], figures, label=kind, zorder=2, **look)
    space, share = tuning.spaces[name], tuning.mattered.get(name)
    if isinstance(space, Range):
        axis.set_xscale("log" if space.log else "linear")
    else:
        axis.set_xticks(range(len(space)), [str(value) for value in space])
        axis.set_xlim(-0.6, len(space) - 0.4)
    axis.set_title(name if share is None else f"{name}, {100 * share:.0f} % of what mattered")
    axis.set_ylabel(_axis(tuning))


def _places(tuning: Tuning, seen: list[Attempt], name: str) -> list[float]:
    """Place trials on the x axis: at their value, or spread around its place in the list, in their order."""
    space = tuning.spaces[name]
    if isinstance(space, Range):
        return [float(attempt.values[name]) for attempt in seen]
    places = []
    for attempt in seen:
        value = attempt.values[name]
        same = sorted(other.number for other in seen if other.values[name] == value)
        share = (same.index(attempt.number) + 1) / (len(same) + 1)
        places.append(space.index(value) + _SPREAD * (share - 0.5))
    return places


def _over_rounds(axis: Axes, tuning: Tuning, seen: list[Attempt]) -> None:
    """Draw every trial's figure as it trained."""
    looks: dict[str, dict[str, Any]] = {
        "ended early": {"color": _ENDED_EARLY, "alpha": 0.6},
        "finished": {"color": _FINISHED, "alpha": 0.4},
        "best": {"color": _BEST, "linewidth": 2.2},
    }
    for attempt in seen:
        rounds, figures = [t for t, _ in attempt.curve], [v * tuning.metric.scale for _, v in attempt.curve]
        axis.plot(rounds, figures, **{"linewidth": 1.2, **looks[_kind(tuning, attempt)]})
    axis.set(title="as they trained", xlabel="round", ylabel=_axis(tuning))


def _kind(tuning: Tuning, attempt: Attempt) -> str:
    if attempt.number == tuning.best.number:
        return "best"
    return "finished" if attempt.ended == "finished" else "ended early"


def _axis(tuning: Tuning) -> str:
    unit = f", {tuning.metric.unit}" if tuning.metric.unit else ""
    return f"validation {tuning.metric.name}{unit}"
