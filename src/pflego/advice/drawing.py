"""A picture of advice: what every client gains, and how the contest went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pflego.advice.words import Advice
from pflego.report.plots import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pflego.advice.verdict import Answer

_NAMED = 12  # clients that have room for their names
_GAIN, _LOSS, _NEITHER = "#3a7d5d", "#b5523b", "0.5"  # apart from the colours of contenders


def draw(advice: Advice, path: Path) -> Path:
    """Draw the gains of all clients over learning alone and over one model, and the figures over the rounds."""
    metric = advice.metric
    with picture(path, 3) as (figure, (federating, personalising, curves)):
        for axis, answer, title in [
            (federating, advice.federating, "gain of federating over learning alone"),
            (personalising, advice.personalising, "gain of own heads over one model"),
        ]:
            _gains(axis, answer, metric.scale)
            axis.set(title=title, ylabel=metric.difference or f"{metric.name}, lower by")
        for standing in advice.standings:
            rounds, figures = zip(*standing.curve, strict=True)
            shown = [metric.scale * value for value in figures]
            curves.plot(rounds, shown, label=standing.words, marker=".", linewidth=1.4)
        curves.locator_params(axis="x", integer=True)
        unit = f", {metric.unit}" if metric.unit else ""
        curves.set(title="on held-out samples", xlabel="round", ylabel=f"{metric.name}{unit}")
        figure.legend(loc="outside lower right", ncols=len(advice.standings), frameon=False, fontsize="small")
    return path


def _gains(axis: Axes, answer: Answer, scale: float) -> None:
    """Draw one bar per client, the largest gain first, on the mean and its interval."""
    ranked = sorted(answer.gains.items(), key=lambda pair: -pair[1])
    heights = [scale * gain for _, gain in ranked]
    colours = [_GAIN if gain > 0 else _LOSS if gain < 0 else _NEITHER for gain in heights]
    places = range(len(ranked))
    axis.axhspan(scale * answer.interval.low, scale * answer.interval.high, color="0.85", zorder=0)
    axis.axhline(scale * answer.gain, color="0.35", linewidth=1, linestyle="--", zorder=1)
    axis.axhline(0, color="0.2", linewidth=0.8, zorder=3)
    axis.bar(places, heights, color=colours, width=0.8, zorder=2)
    equal = [place for place, height in zip(places, heights, strict=True) if height == 0]
    axis.plot(equal, [0] * len(equal), linestyle="none", marker="o", markersize=3, color=_NEITHER, zorder=4)
    axis.set_xlabel("clients, in the order of their gain")
    if len(ranked) <= _NAMED:
        axis.set_xticks(places, [name for name, _ in ranked], rotation=30 if len(ranked) > 6 else 0)
    else:
        axis.set_xticks([])
    axis.grid(visible=False, axis="x")
