"""How the cost of a round grows, as a picture: `python -m benchmarks.growth --out docs/performance-growth.png`.

Every panel varies one quantity and leaves the others at: MLP 784-200, 20 of 20 clients take part, 600 samples each,
K = 2, tau = 50. Beside the picture stands a JSON file with the numbers. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from rich.progress import track
from torch import nn

import pflego
from benchmarks.work import federation, population
from pflego.report.plots import Curve, Panel, draw

METHODS = {"PFLEGO": pflego.PFLEGO, "FedRep": pflego.FedRep, "FedAvg": pflego.FedAvg}
Setting = dict[str, int]
BASE: Setting = {"tau": 50, "clients": 20, "participants": 20, "samples": 600, "classes": 2, "features": 200}
PANELS: dict[str, Sequence[int]] = {
    "tau": [5, 10, 20, 50, 100],
    "clients": [20, 100, 1_000, 10_000, 100_000],
    "participants": [5, 10, 20, 40],
    "samples": [20, 60, 200, 600, 2000],
    "classes": [2, 5, 10, 20, 62],
    "features": [50, 100, 200, 400],
}


def seconds(method: Callable[..., pflego.Algorithm], setting: Setting, number: int) -> float:
    """Median seconds of a round, the first left out."""
    if setting["clients"] > setting["participants"]:
        fed = population(setting["clients"], samples=setting["samples"])
    else:
        fed = federation(
            clients=setting["participants"], samples=setting["samples"], classes=setting["classes"]
        )
    width = setting["features"]
    model = pflego.Model(nn.Sequential(nn.Linear(784, width), nn.ReLU()), features=width)
    run = pflego.train(
        fed,
        model,
        method(steps=setting["tau"]),
        rounds=number + 1,
        participation=setting["participants"],
        evaluate_every=None,
    )
    return median(row["seconds"] or 0.0 for row in run.history[1:])


def main() -> None:
    """Measure, draw, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("growth.png"), help="the picture")
    parser.add_argument("--quick", action="store_true", help="the ends of every panel only, once")
    arguments = parser.parse_args()
    grids = {key: [grid[0], grid[-1]] if arguments.quick else grid for key, grid in PANELS.items()}
    work = [(key, value, name) for key, grid in grids.items() for value in grid for name in METHODS]
    measured: dict[str, dict[str, dict[int, float]]] = {key: {name: {} for name in METHODS} for key in grids}
    for key, value, name in track(work, description="rounds"):
        setting = {**BASE, key: value}
        if key == "participants":
            setting["clients"] = value
        number = 1 if arguments.quick or name != "PFLEGO" else 5
        measured[key][name][value] = seconds(METHODS[name], setting, number)
    panels = [
        Panel(
            f"more {key}" if key != "tau" else "more steps",
            [Curve(name, list(curve), list(curve.values())) for name, curve in curves.items()],
            key,
            "seconds a round",
            scale="log",
        )
        for key, curves in measured.items()
    ]
    draw(panels, arguments.out)
    arguments.out.with_suffix(".json").write_text(
        json.dumps({"base": BASE, "seconds a round": measured}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
