"""What does exactness cost, or bring? One exact SGD step on the federation's loss against PFLEGO's defaults.

    PFLEGO_DATA=... python examples/exactness.py --out docs/exactness.json

The joint step is exact with head_step="exact", an SGD server and no cap. Its rate is tried at several values; beside
it stand the defaults (the paper's head step, capped at 1/L_i, and Adam at the server) and the exact head step under
Adam. Clients step at 1/L_i throughout. Plain and common heads, MNIST and Fashion-MNIST, high and no personalisation, 20
of 100 clients, tau = 50. Prints the table of docs/method.md: participants, the mean of the last ten rounds / everyone
after the last. What the file holds already is not trained again.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

import pflego
from results_file import ResultsFile

DEGREES = {"high": 2, "none": 10}
LAST = 10


def settings(rates: list[float]) -> dict[str, dict[str, Any]]:
    """Name what is compared."""
    exact: dict[str, dict[str, Any]] = {
        f"exact SGD, rate {rate:g}": {"head_step": "exact", "server_optimizer": "sgd", "server_lr": rate}
        for rate in rates
    }
    return {"defaults": {}, "exact head step, Adam": {"head_step": "exact"}, **exact}


def table(rows: list[dict[str, Any]]) -> str:
    """Print participants / everyone, one row per setting."""
    cells = list(dict.fromkeys((row["data"], row["degree"], row["rounds"]) for row in rows))
    heading = " | ".join(f"{data}, {degree}, T = {rounds}" for data, degree, rounds in cells)
    lines = [f"| | {heading} |", "| --- " * (1 + len(cells)) + "|"]
    found = {(row["heads"], row["setting"], row["data"], row["degree"], row["rounds"]): row for row in rows}
    for heads, setting in dict.fromkeys((row["heads"], row["setting"]) for row in rows):
        words = []
        for cell in cells:
            row = found.get((heads, setting, *cell))
            words.append("–" if row is None else f"{row['participants']:.2f} / {row['everyone']:.2f}")
        lines.append(f"| {heads}, {setting} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train what is not known yet; keep and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist,fashion-mnist")
    parser.add_argument("--rates", default="0.1,0.3,1")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/exactness.json"))
    given = parser.parse_args()
    found: ResultsFile[dict[str, Any]] = ResultsFile(
        given.out, "data", "degree", "heads", "setting", "rounds"
    )
    for data in filter(None, given.data.split(",")):
        for degree, classes in DEGREES.items():
            federation = pflego.load(data, clients=100, classes_per_client=classes, seed=given.seed)
            model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]), seed=given.seed)
            for heads in ("plain", "common"):
                for setting, changes in settings([float(rate) for rate in given.rates.split(",")]).items():
                    if (data, degree, heads, setting, given.rounds) in found:
                        continue
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # of rates above the bound, which the figures show
                        run = pflego.train(
                            federation,
                            model,
                            pflego.PFLEGO(client_lr="auto", common_head=heads == "common", **changes),
                            rounds=given.rounds,
                            participation=20,
                            seed=given.seed,
                            evaluate_every=0,
                            progress=False,
                        )
                    figures = [row["participants_accuracy"] or 0.0 for row in run.history[-LAST:]]
                    row = {
                        "data": data,
                        "degree": degree,
                        "heads": heads,
                        "setting": setting,
                        "rounds": given.rounds,
                        "seed": given.seed,
                        "participants": round(100 * fmean(figures), 2),
                        "everyone": round(100 * (run.history[-1]["everyone_accuracy"] or 0.0), 2),
                    }
                    print(found.add(row), flush=True)
    print(table(found.rows))


if __name__ == "__main__":
    main()
