"""Do the rates that `pflego tune` and `pflego compare` try hold every method's best? Each at a grid that is wider.

    PFLEGO_DATA=... python -m benchmarks.ranges --out runs/ranges.json

Digits, MNIST and a table (diabetes), small: every method at each of ten main rates. A method whose best over the grid
is more than half a point (of a regression's error: a hundredth) better than the best inside what is tried is named, and
the exit status is 1. What the file holds already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pflego
from pflego.algorithms.base import Algorithm
from pflego.algorithms.registry import methods
from pflego.comparison.rates import candidates, main_rate
from pflego.tuning.space import Range, Value, holds, usual

GRID: dict[str, tuple[float, ...]] = {
    "client_lr": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "server_lr": (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
}
ALLOWED = {True: 0.005, False: 0.01}  # points of a share, part of an error
CLIENTS = 20  # of MNIST's hundred, for each to have as much data as usual
Row: TypeAlias = dict[str, Any]  # data, method, rate, figures by rate, higher_is_better


def federation(data: str) -> pflego.Federation:
    """Load a small federation."""
    if data == "diabetes":
        return pflego.load(data, clients=8)
    if data == "digits":
        return pflego.load(data, clients=20, classes_per_client=5)
    whole = pflego.load(data, clients=100, classes_per_client=5)
    return pflego.Federation([whole[position] for position in range(CLIENTS)])


def figures(data: pflego.Federation, make: Callable[..., Algorithm], rate: str, rounds: int) -> Row:
    """Give everyone's adapted figure at every rate; None where training diverged."""
    found: dict[str, float | None] = {}
    model = pflego.models.build("mlp", tuple(data[0].x_train.shape[1:]))
    for value in ("auto", *GRID[rate]) if getattr(make(), rate) == "auto" else GRID[rate]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = pflego.train(
                data,
                model,
                make(**{rate: value}),
                rounds=rounds,
                participation=len(data) // 2,
                evaluate_every=0,
                evaluate_adapted=True,
                progress=False,
            )
        found[str(value)] = run.history[-1].get(f"everyone_adapted_{data.task.metric}")
    return {"figures": found, "higher_is_better": data.task.higher_is_better}


def behind(row: Row, tried: Range | list[Value]) -> float:
    """Compute how far the best of what is tried lies behind the best of all; "auto" always is."""
    sign = 1 if row["higher_is_better"] else -1
    known: dict[str, float] = {
        rate: sign * figure for rate, figure in row["figures"].items() if figure is not None
    }
    best = max(known.values())
    inside = max(
        (figure for rate, figure in known.items() if rate == "auto" or holds(tried, float(rate))),
        default=-float("inf"),
    )
    return (best - inside) / (1 if row["higher_is_better"] else -best)


def words(row: Row) -> str:
    """Print a method's figures, per cent or as they are."""
    each = [
        f"{rate} {figure if figure is None else format(figure, '.3f')}"
        for rate, figure in row["figures"].items()
    ]
    return f"{row['data']:9} {row['method']:14} {row['rate']}: " + "  ".join(each)


def contenders(names: Sequence[str]) -> dict[str, Callable[..., Algorithm]]:
    """Name every method, and PFLEGO with a common head."""
    kinds: dict[str, Callable[..., Algorithm]] = {name: methods()[name] for name in names}
    if "pflego" in names:
        kinds["pflego, common"] = lambda **rates: pflego.PFLEGO(common_head=True, **rates)
    return kinds


def main() -> int:
    """Train, say what came of it, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/ranges.json"))
    parser.add_argument("--data", default="digits,mnist,diabetes")
    parser.add_argument("--methods", default=",".join(methods()))
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    rows: list[Row] = json.loads(given.out.read_text()) if given.out.exists() else []
    known = {(row["data"], row["method"]) for row in rows}
    for data in filter(None, given.data.split(",")):
        loaded = federation(data)
        for name, make in contenders(given.methods.split(",")).items():
            rate = main_rate(make())
            assert rate is not None
            if (data, name) not in known:
                rows.append(
                    {"data": data, "method": name, "rate": rate, **figures(loaded, make, rate, given.rounds)}
                )
                given.out.parent.mkdir(parents=True, exist_ok=True)
                given.out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
                print(words(rows[-1]), flush=True)
    late = []
    for row in rows:
        algorithm = contenders(list(methods()))[row["method"]]()
        space = usual(algorithm)[row["rate"]]
        compared = [float(v) for v in candidates(getattr(algorithm, row["rate"])) if v != "auto"]
        for who, tried in (("tune", space), ("compare", Range(min(compared), max(compared)))):
            if (distance := behind(row, tried)) > ALLOWED[row["higher_is_better"]]:
                late.append(f"{who}: {row['data']}, {row['method']}, by {distance:.3f}")
    print("better outside of what is tried:", "; ".join(late) or "none")
    return bool(late)


if __name__ == "__main__":
    sys.exit(main())
