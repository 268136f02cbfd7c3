"""Does `pflego compare` rank methods, or their rates? Each at the rate it chose, beside its best over a wide grid.

    python -m benchmarks.fairness --out runs/fairness

Digits, 20 clients of 5 classes each, 30 rounds, everyone in each. A method that lies more than two points below its own
best is named, and the exit status is 1. The figures go to fairness.json in the folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pflego.algorithms.registry import methods
from pflego.comparison.compare import compare
from pflego.comparison.rates import main_rate

SETTINGS = {"data": "digits", "clients": 20, "classes_per_client": 5, "rounds": 30, "evaluate_every": 0}
GRID = {"client_lr": (0.01, 0.03, 0.1, 0.3, 1.0), "server_lr": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)}
ALLOWED = 0.02


def figures(name: str, folder: Path) -> dict[str, object]:
    """Give everyone's adapted accuracy at the rate that was chosen, and at every rate of the grid."""
    [entry] = compare(SETTINGS, [name], [0], folder / "chosen", progress=False)
    rate = main_rate(methods()[name]())
    assert rate is not None
    grid = {}
    for tried_rate in GRID[rate]:
        given = {**SETTINGS, rate: tried_rate}
        [tried] = compare(given, [name], [0], folder / f"{tried_rate:g}", rates="given", progress=False)
        grid[f"{tried_rate:g}"] = tried.summary.everyone_adapted or 0.0
    chosen = entry.summary.everyone_adapted or 0.0
    value = None if entry.rate is None else entry.rate.value
    best = max(chosen, *grid.values())
    return {"method": name, "rate": rate, "value": value, "chosen": chosen, "best": best, "grid": grid}


def main() -> int:
    """Compare, say what came of it, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/fairness"))
    parser.add_argument("--methods", default=",".join(methods()))
    words = parser.parse_args()
    rows = []
    for name in words.methods.split(","):
        rows.append(row := figures(name, words.out))
        print(json.dumps(row), flush=True)
    words.out.mkdir(parents=True, exist_ok=True)
    (words.out / "fairness.json").write_text(json.dumps(rows, indent=1) + "\n")
    behind = [
        str(row["method"]) for row in rows if float(str(row["best"])) - float(str(row["chosen"])) > ALLOWED
    ]
    print(f"more than {100 * ALLOWED:g} points below their best: {', '.join(behind) or 'none'}")
    return bool(behind)


if __name__ == "__main__":
    sys.exit(main())
