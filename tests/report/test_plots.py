from __future__ import annotations

from pathlib import Path

import pytest

from pflego.report.plots import Curve, Panel, draw


def test_a_dozen_curves_have_a_colour_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = pytest.importorskip("matplotlib.axes").Axes
    seen = pytest.importorskip("matplotlib.colors").to_hex  # C0 and C10 are one colour
    plot, colours = axes.plot, []

    def noted(axis: object, *values: object, **style: object) -> object:
        colours.append(seen(style["color"]))
        return plot(axis, *values, **style)

    monkeypatch.setattr(axes, "plot", noted)
    curves = [Curve(f"method {number}", [10, 300, 2000], [number, 1, 2]) for number in range(12)]
    path = draw([Panel("all of them", curves, "passes", "accuracy", "log x")], tmp_path / "picture.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert len(set(colours)) == len(colours) == 12
