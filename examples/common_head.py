"""How much personalisation does a federation need? Plain heads against a common head, on real data.

    PFLEGO_DATA=... python examples/common_head.py --settings common-0.002,plain --seeds 1,2,3

Trains every setting on every data set and degree of personalisation (T = 200, tau = 50, 20 of 100 clients), a folder
a run, resumable; then writes docs/common-head.json and draws docs/common-head.png from all runs there are.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import pflego
from pflego.plots import Curve, Panel, draw

DEGREES = {"high": 2, "medium": 5, "none": 10}
SETTINGS = {
    "plain": pflego.PFLEGO(),
    "published rates": pflego.PFLEGO(client_lr=0.189),
    "common-0.001": pflego.PFLEGO(common_head=True, server_lr=0.001),
    "common-0.002": pflego.PFLEGO(common_head=True, server_lr=0.002),
    "common-0.003": pflego.PFLEGO(common_head=True, server_lr=0.003),
}
LAST = 10  # a figure is the mean over the last ten rounds, as in the paper


@dataclass(frozen=True)
class Result:
    """One run's figures, in per cent, and its curves."""

    setting: str
    data: str
    degree: str
    seed: int
    participants: float
    everyone: float
    participants_curve: list[float]
    everyone_curve: list[float]


def train(setting: str, data: str, degree: str, seed: int, rounds: int, folder: Path) -> Result:
    """Run one cell, or go on with it."""
    federation = pflego.load(data, clients=100, classes_per_client=DEGREES[degree], seed=seed)
    model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]), seed=seed)
    run = pflego.train(
        federation,
        model,
        SETTINGS[setting],
        rounds=rounds,
        participation=20,
        seed=seed,
        evaluate_every=1,
        out=folder / f"{setting}-{data}-{degree}-{seed}",
        resume=True,
        progress=True,
    )
    participants = [100 * (row["participants_accuracy"] or 0) for row in run.history]
    everyone = [100 * (row["everyone_accuracy"] or 0) for row in run.history]
    return Result(setting, data, degree, seed, mean(participants), mean(everyone), participants, everyone)


def mean(curve: list[float]) -> float:
    """The mean of the last rounds."""
    return sum(curve[-LAST:]) / len(curve[-LAST:])


def picture(results: list[Result], path: Path) -> None:
    """Draw everyone's accuracy over the rounds, a panel a cell, the first seed of each setting."""
    panels = []
    for data, degree in sorted(
        {(r.data, r.degree) for r in results}, key=lambda c: (c[0], list(DEGREES).index(c[1]))
    ):
        cell = [r for r in results if (r.data, r.degree) == (data, degree)]
        shown = [
            next(r for r in cell if r.setting == name) for name in dict.fromkeys(r.setting for r in cell)
        ]
        curves = [
            Curve(r.setting, range(1, len(r.everyone_curve) + 1), r.everyone_curve)
            for r in shown
            if r.everyone_curve
        ]
        floor = min(curve.y[len(curve.y) // 4] for curve in curves)
        panels.append(Panel(f"{data}, {degree}", curves, "round", "everyone, %", lowest=floor - 1))
    draw(panels, path)


def main() -> None:
    """Train what is asked for; write and draw what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--data", default="mnist,fashion-mnist")
    parser.add_argument("--degrees", default=",".join(DEGREES))
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--runs", type=Path, default=Path("runs/common-head"))
    parser.add_argument("--out", type=Path, default=Path("docs/common-head.json"))
    arguments = parser.parse_args()
    results = [
        train(setting, data, degree, int(seed), arguments.rounds, arguments.runs)
        for seed in arguments.seeds.split(",")
        for setting in arguments.settings.split(",")
        for data in arguments.data.split(",")
        for degree in arguments.degrees.split(",")
    ]
    rows = [{k: _rounded(v) for k, v in vars(result).items()} for result in results]
    arguments.out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    picture(results, arguments.out.with_suffix(".png"))


def _rounded(value: object) -> object:
    if isinstance(value, list):
        return [round(number, 2) for number in value]
    return round(value, 2) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
