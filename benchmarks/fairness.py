"""Does `pflego compare` rank methods, or their rates? Each at the rate it chose, beside its best over a wide grid.

    python -m benchmarks.fairness --runs runs/fairness --out docs/compare-rates.json

Digits, 20 clients of 5 classes each, 30 rounds, everyone in each. Keeps every method's figures as JSON and prints the
table of docs/algorithms.md. A method that lies more than two points below its own best is named, and the exit status
is 1. Every run has a folder: what was trained before is read.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pflego.algorithms.registry import methods
from pflego.comparison.compare import compare
from pflego.comparison.rates import main_rate
from pflego.tuning.space import Value

SETTINGS = {"data": "digits", "clients": 20, "classes_per_client": 5, "rounds": 30, "evaluate_every": 0}
GRID = {"client_lr": (0.01, 0.03, 0.1, 0.3, 1.0), "server_lr": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)}
ALLOWED = 0.02


@dataclass(frozen=True)
class Row:
    """Everyone's adapted accuracy of one method, at the rate that was chosen and at every rate of the grid."""

    method: str
    rate: str
    value: Value
    chosen: float
    grid: dict[str, float]

    @property
    def best(self) -> tuple[str, float]:
        """The best rate of all, and its figure; the chosen one, if none is better."""
        return max({str(self.value): self.chosen, **self.grid}.items(), key=lambda one: one[1])

    @property
    def behind(self) -> float:
        """How far the chosen rate's figure lies below the best."""
        return self.best[1] - self.chosen


def figures(name: str, folder: Path) -> Row:
    """Let `compare` choose a method's rate, then give it every rate of the grid."""
    [entry] = compare(SETTINGS, [name], [0], folder / "chosen", progress=False)
    assert entry.rate is not None
    rate = entry.rate.name
    assert rate == main_rate(methods()[name]())
    grid = {}
    for tried_rate in GRID[rate]:
        given = {**SETTINGS, rate: tried_rate}
        [tried] = compare(given, [name], [0], folder / f"{tried_rate:g}", rates="given", progress=False)
        grid[f"{tried_rate:g}"] = round(tried.summary.everyone_adapted or 0.0, 4)
    return Row(name, rate, entry.rate.value, round(entry.summary.everyone_adapted or 0.0, 4), grid)


def table(rows: list[Row]) -> str:
    """Print what was chosen beside the best."""
    lines = ["| method | chosen | everyone adapted, % | best rate | % | behind |", "| --- " * 6 + "|"]
    for row in rows:
        rate, best = row.best
        lines.append(
            f"| `{row.method}` | `{row.rate}` {row.value} | {100 * row.chosen:.1f} "
            f"| {rate} | {100 * best:.1f} | {100 * row.behind:.1f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Compare, say what came of it, and give the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fairness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/fairness"))
    parser.add_argument("--out", type=Path, default=Path("runs/compare-rates.json"))
    parser.add_argument("--methods", default=",".join(methods()))
    words = parser.parse_args()
    rows: list[Row] = []
    for name in words.methods.split(","):
        rows.append(figures(name, words.runs))
        words.out.parent.mkdir(parents=True, exist_ok=True)
        words.out.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")
        print(rows[-1], flush=True)
    print(table(rows))
    late = [row.method for row in rows if row.behind > ALLOWED]
    print(f"more than {100 * ALLOWED:g} points below their best: {', '.join(late) or 'none'}")
    return bool(late)


if __name__ == "__main__":
    sys.exit(main())
