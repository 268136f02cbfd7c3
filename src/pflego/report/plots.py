"""Pictures for documents: PNG or SVG, by matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pflego.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_FEW = 20  # points that are worth one mark each
_COLOURS = *(f"C{number}" for number in range(10)), "black", "gold", "navy", "lime"  # matplotlib's, and more
_WIDE = 300  # times the least, from where on numbers of a logarithmic axis would touch
_TICKS = 8  # points that are worth a number each on a logarithmic axis


@dataclass(frozen=True)
class Curve:
    """A line in a picture."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "-"


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    curves: Sequence[Curve]
    x: str
    y: str
    scale: Literal["linear", "log", "log x"] = "linear"
    lowest: float | None = None


def draw(panels: Sequence[Panel], path: Path, *, columns: int = 3) -> Path:
    """Draw panels side by side into a file; its ending says the format. A label has one colour in all of them."""
    labels = dict.fromkeys(curve.label for panel in panels for curve in panel.curves)
    colours = dict(zip(labels, cycle(_COLOURS), strict=False))
    lines: dict[str, Line2D] = {}
    with picture(path, len(panels), columns=columns) as (figure, axes):
        for axis, panel in zip(axes, panels, strict=True):
            lines |= _fill(axis, panel, colours)
        figure.legend([lines[label] for label in labels], labels, loc="outside right upper", frameon=False)
    return path


def _fill(axis: Axes, panel: Panel, colours: Mapping[str, str]) -> dict[str, Line2D]:
    """Draw one panel; give its lines by their labels."""
    lines = {}
    for curve in panel.curves:
        mark, colour = "." if len(curve.x) <= _FEW else None, colours[curve.label]
        [line] = axis.plot(curve.x, curve.y, curve.style, linewidth=1.4, color=colour, marker=mark)
        lines[curve.label] = line
    axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axis.set(xscale=panel.scale.removesuffix(" x"), yscale="log" if panel.scale == "log" else "linear")
    points = sorted({x for curve in panel.curves for x in curve.x})
    if panel.scale == "log" and len(points) <= _TICKS:
        axis.set_xticks(points, [f"{x:,.6g}" for x in points], minor=False)
        axis.set_xticks([], minor=True)
    if panel.scale == "log x":
        from matplotlib.ticker import LogLocator

        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3) if points[-1] < _WIDE * points[0] else (1,)))
        axis.xaxis.set_major_formatter("{x:,.6g}")
        axis.xaxis.set_minor_formatter("")
    if panel.lowest is not None:
        highest = max(y for curve in panel.curves for y in curve.y)
        axis.set_ylim(panel.lowest, highest + 0.05 * (highest - panel.lowest))
    return lines


@contextmanager
def picture(path: Path, panels: int, *, columns: int = 3) -> Iterator[tuple[Figure, list[Axes]]]:
    """Give `panels` pairs of axes to draw on, side by side; they are written to a file when it is done."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("for pictures: pip install 'pflego[plots]'") from error
    mpl.use("agg")
    from matplotlib import pyplot as plt

    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1 + 4 * columns, 3.2 * rows), squeeze=False, layout="constrained"
    )
    try:
        for axis in axes.flat[panels:]:
            axis.set_visible(False)
        for axis in axes.flat[:panels]:
            axis.grid(alpha=0.25, which="both")
        yield figure, list(axes.flat[:panels])
        content = BytesIO()
        figure.savefig(content, dpi=110, format=path.suffix.lstrip(".") or "png")
    finally:
        plt.close(figure)
    make_folder(path.parent)
    write_atomically(path, content.getvalue())
