"""What does it bring to take the mean of the features out of the head's steps? client_lr="centred" against "auto".

    PFLEGO_DATA=... OMP_NUM_THREADS=1 python examples/head_rates.py --out docs/head-rates.json
    python examples/head_rates.py --cells digits-5

Own heads and a common one, this by one joint step per round and by mini-batches, at their defaults, early in training,
where the rate of the heads matters most: a few dozen rounds through the paper's MLP, a small convolutional network
(CIFAR-10) and a deep one (ten alphabets of Omniglot). Keeps everyone's figure as they are and adapted, in per cent, and
by how much the mean makes the Hessian's bound larger, before the first round and after the last: the median over the
clients of (a + c |m|^2) / a, a of whatever size, see learning/heads/bound.py. Prints the table of docs/method.md. What
the file holds already is not trained again.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import pflego
from omniglot import Study
from pflego.learning.theory import head_smoothness, mean_row
from pflego.weights import Weights
from results_file import ResultsFile


@dataclass(frozen=True)
class Cell:
    """A federation, the network it trains, and for how long."""

    data: str
    classes: int  # per client; Omniglot's clients are alphabets
    clients: int
    participants: int
    rounds: int
    model: str = "mlp"

    def federation(self, seed: int) -> pflego.Federation:
        """Deal out the data."""
        if self.data == "omniglot":
            return Study.load(5, self.participants, seed).federation
        return pflego.load(self.data, clients=self.clients, classes_per_client=self.classes, seed=seed)


CELLS = {
    "digits-5": Cell("digits", 5, 20, 5, 20),
    "mnist-2": Cell("mnist", 2, 100, 20, 40),
    "mnist-10": Cell("mnist", 10, 100, 20, 40),
    "fashion-mnist-2": Cell("fashion-mnist", 2, 100, 20, 40),
    "fashion-mnist-10": Cell("fashion-mnist", 10, 100, 20, 40),
    "cifar10-2": Cell("cifar10", 2, 100, 10, 30, "cnn"),
    "cifar10-10": Cell("cifar10", 10, 100, 10, 30, "cnn"),
    "omniglot": Cell("omniglot", 0, 10, 2, 60, "omniglot-conv4"),
}
HEADS: dict[str, dict[str, Any]] = {
    "own": {},
    "common": {"common_head": True},
    "common, mini-batches": {"common_head": True, "batch_size": 32},
}
RATES: tuple[Literal["auto", "centred"], ...] = ("auto", "centred")


def excess(run: pflego.Run, shared: Weights) -> float:
    """Give the factor by which the mean of the features makes the Hessian's bound larger: the median over clients."""
    found = []
    for position in range(len(run.federation)):
        features = run.problems[position].features(shared)
        mean = mean_row(features)
        spread = head_smoothness(features, run.federation.task, mean=mean)  # a
        found.append(1 + run.federation.task.curvature * float(mean @ mean) / spread)
    return median(found)


def train(name: str, heads: str, rate: Literal["auto", "centred"], seed: int) -> dict[str, Any]:
    """Train one cell, and give its figures."""
    cell = CELLS[name]
    federation = cell.federation(seed)
    model = pflego.models.build(cell.model, tuple(federation[0].x_train.shape[1:]), seed=seed)
    run = pflego.train(
        federation,
        model,
        pflego.PFLEGO(**HEADS[heads], client_lr=rate),
        rounds=cell.rounds,
        participation=cell.participants,
        seed=seed,
        evaluate_every=0,
        evaluate_adapted=True,
        progress=False,
    )
    last = run.history[-1]
    return {
        "cell": name,
        "heads": heads,
        "client_lr": rate,
        "seed": seed,
        "everyone": round(100 * (last["everyone_accuracy"] or 0.0), 2),
        "adapted": round(100 * (last["everyone_adapted_accuracy"] or 0.0), 2),
        "excess": [round(excess(run, weights), 1) for weights in (model.shared_weights(), run.shared)],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Print the mean over seeds of everyone / adapted, one row per cell."""
    columns = list(product(HEADS, RATES))
    lines = ["| | excess | " + " | ".join(f"{heads}: {rate}" for heads, rate in columns) + " |"]
    lines.append("| --- " * (2 + len(columns)) + "|")
    for name in dict.fromkeys(row["cell"] for row in rows):
        own = [row for row in rows if row["cell"] == name]
        words = [" to ".join(f"{fmean(row['excess'][at] for row in own):,.0f}" for at in (0, 1))]
        for heads, rate in columns:
            some = [row for row in own if (row["heads"], row["client_lr"]) == (heads, rate)]
            figures = [fmean(row[figure] for row in some) for figure in ("everyone", "adapted") if some]
            words.append(" / ".join(f"{figure:.1f}" for figure in figures) or "–")
        lines.append(f"| {name}, T = {CELLS[name].rounds} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train what is not known yet; keep and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--heads", default=";".join(HEADS), help="separated by semicolons")
    parser.add_argument("--seeds", default="11")
    parser.add_argument("--out", type=Path, default=Path("runs/head-rates.json"))
    given = parser.parse_args()
    found: ResultsFile[dict[str, Any]] = ResultsFile(given.out, "cell", "heads", "client_lr", "seed")
    for name, seed in product(given.cells.split(","), map(int, given.seeds.split(","))):
        for heads, rate in product(given.heads.split(";"), RATES):
            if (name, heads, rate, seed) not in found:
                print(found.add(train(name, heads, rate, seed)), flush=True)
    print(table(found.rows))


if __name__ == "__main__":
    main()
