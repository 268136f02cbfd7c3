"""How much personalisation does a federation need? Plain heads against a common head, on real data.

    PFLEGO_DATA=... python examples/common_head.py --settings "plain;common" --seeds 1,2,3

Trains every setting on every data set and degree of personalisation (T = 200, tau = 50, 20 of 100 clients), a folder
a run, resumable. Results are added to docs/common-head.json; from all that are there it draws docs/common-head.png
and prints the tables of docs/common-head.md. With --settings "" it only draws and prints.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pflego
from pflego.report.plots import Curve, Panel, draw
from results_file import ResultsFile, write_rows

DEGREES = {"high": 2, "medium": 5, "none": 10}
_ZERO: dict[str, Any] = {"common_head": True, "head_init": "zeros"}
SETTINGS = {
    "plain": pflego.PFLEGO(client_lr="auto"),
    "common": pflego.PFLEGO(common_head=True),  # server_lr=0.002, head_decay=0.1, W_0 centred
    "common, from zero": pflego.PFLEGO(**_ZERO),
    "common, from zero, rate 0.001, no decay": pflego.PFLEGO(**_ZERO, server_lr=0.001, head_decay=0.0),
    "common, from zero, rate 0.002, no decay": pflego.PFLEGO(**_ZERO, server_lr=0.002, head_decay=0.0),
    "common, from zero, rate 0.003, no decay": pflego.PFLEGO(**_ZERO, server_lr=0.003, head_decay=0.0),
    "common, from zero, decay 0.01": pflego.PFLEGO(**_ZERO, head_decay=0.01),
    "common, from zero, decay 1": pflego.PFLEGO(**_ZERO, head_decay=1.0),
}
LAST = 10  # a figure is the mean over the last ten rounds, as in the paper


@dataclass(frozen=True)
class Result:
    """One run's accuracies in per cent, round by round."""

    setting: str
    data: str
    degree: str
    seed: int
    participants: list[float]
    everyone: list[float]

    @property
    def cell(self) -> tuple[str, str]:
        """Where it belongs in the table."""
        return self.data, self.degree


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
    participants, everyone = (
        [round(100 * (row[f"{protocol}_accuracy"] or 0), 2) for row in run.history]
        for protocol in ("participants", "everyone")
    )
    return Result(setting, data, degree, seed, participants, everyone)


def cells(results: list[Result]) -> list[tuple[str, str]]:
    """All cells, in the order of the paper's table."""
    return sorted({r.cell for r in results}, key=lambda c: (c[0] != "mnist", list(DEGREES).index(c[1])))


def table(results: list[Result]) -> str:
    """Participants / everyone, the mean of the last rounds; over several seeds, mean ± standard deviation."""
    lines = ["| | " + " | ".join(f"{data}, {degree}" for data, degree in cells(results)) + " |"]
    lines.append("| --- " * (1 + len(cells(results))) + "|")
    for setting in dict.fromkeys(r.setting for r in results):
        words = []
        for cell in cells(results):
            own = [r for r in results if r.setting == setting and r.cell == cell]
            both = [[fmean(r.participants[-LAST:]) for r in own], [fmean(r.everyone[-LAST:]) for r in own]]
            words.append(" / ".join(map(_mean, both)) if own else "–")
        lines.append(f"| {setting} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def picture(results: list[Result], path: Path) -> None:
    """Draw everyone's accuracy over the rounds, a panel a cell, the first seed."""
    first = [r for r in results if r.seed == min(r.seed for r in results)]
    panels = []
    for cell in cells(first):
        curves = [
            Curve(r.setting, range(1, len(r.everyone) + 1), r.everyone) for r in first if r.cell == cell
        ]
        floor = min(curve.y[len(curve.y) // 4] for curve in curves)
        panels.append(Panel(", ".join(cell), curves, "round", "everyone, %", lowest=floor - 1))
    draw(panels, path)


def main() -> None:
    """Train what is asked for; keep, draw and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--settings", default="plain;common")
    parser.add_argument("--data", default="mnist,fashion-mnist")
    parser.add_argument("--degrees", default=",".join(DEGREES))
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--runs", type=Path, default=Path("runs/common-head"))
    parser.add_argument("--out", type=Path, default=Path("docs/common-head.json"))
    arguments = parser.parse_args()
    known: ResultsFile[dict[str, Any]] = ResultsFile(arguments.out)
    results = {(r.setting, *r.cell, r.seed): r for r in (Result(**row) for row in known)}
    for setting in filter(None, arguments.settings.split(";")):
        for seed in map(int, arguments.seeds.split(",")):
            for data in arguments.data.split(","):
                for degree in arguments.degrees.split(","):
                    results[setting, data, degree, seed] = train(
                        setting, data, degree, seed, arguments.rounds, arguments.runs
                    )
    ordered = [result for _, result in sorted(results.items())]
    write_rows(arguments.out, [asdict(result) for result in ordered])
    first = [result for result in ordered if result.seed == ordered[0].seed]
    picture(first, arguments.out.with_suffix(".png"))
    print(
        "All seeds\n",
        table([result for result in ordered if result.setting in ("plain", "common", "common, from zero")]),
        sep="\n",
    )
    print(f"\nSeed {ordered[0].seed}\n", table(first), sep="\n")


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
