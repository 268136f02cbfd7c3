"""Pictures for documents: PNG or SVG, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

from pflego.files import make_folder, write_atomically

_FEW = 20  # points that are worth a mark each
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
    scale: Literal["linear", "log"] = "linear"
    lowest: float | None = None


def draw(panels: Sequence[Panel], path: Path, *, columns: int = 3) -> Path:
    """Draw panels side by side into a file; its ending says the format. A label has one colour in all of them."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("for pictures: pip install 'pflego[plots]'") from error
    mpl.use("agg")
    from matplotlib import pyplot as plt

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1 + 4 * columns, 3.2 * rows), squeeze=False, layout="constrained"
    )
    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    lines = {}
    for axis, panel in zip(axes.flat, panels, strict=False):
        for curve in panel.curves:
            look = {"color": f"C{labels.index(curve.label)}", "marker": "." if len(curve.x) <= _FEW else None}
            [lines[curve.label]] = axis.plot(curve.x, curve.y, curve.style, linewidth=1.4, **look)
        axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, xscale=panel.scale, yscale=panel.scale)
        if (
            panel.scale == "log"
            and (points := sorted({x for curve in panel.curves for x in curve.x}))[_TICKS:] == []
        ):
            axis.set_xticks(points, [f"{x:,.6g}" for x in points], minor=False)
            axis.set_xticks([], minor=True)
        if panel.lowest is not None:
            axis.set_ylim(bottom=panel.lowest)
        axis.grid(alpha=0.25, which="both")
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.legend([lines[label] for label in labels], labels, loc="outside right upper", frameon=False)
    picture = BytesIO()
    figure.savefig(picture, dpi=110, format=path.suffix.lstrip(".") or "png")
    plt.close(figure)
    make_folder(path.parent)
    write_atomically(path, picture.getvalue())
    return path
