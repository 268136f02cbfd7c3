"""Speed, as ratios within one run: `make bench`, or `python -m benchmarks --quick`.

Prints a table and writes it as JSON. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import pflego


def federation(*, clients: int, samples: int, classes: int) -> pflego.Federation:
    """Make clients with random images of 784 pixels."""
    rng = np.random.default_rng(0)
    return pflego.Federation(
        [
            pflego.Client(i, rng.random((samples, 784), dtype=np.float32), np.arange(samples) % classes)
            for i in range(clients)
        ]
    )


def seconds_a_round(
    fed: pflego.Federation, model: pflego.Model, algorithm: pflego.Algorithm, rounds: int
) -> float:
    """Median seconds of client and server work, the first round left out."""
    run = pflego.train(fed, model, algorithm, rounds=rounds + 1, evaluate_every=0)
    return median(row["seconds"] or 0.0 for row in run.history[1:])


def plain_pass(fed: pflego.Federation, model: pflego.Model, classes: int, repeats: int) -> float:
    """Median seconds of one forward and backward pass over all clients' data: the least a gradient costs."""
    network = nn.Sequential(model.backbone, nn.Linear(model.features, classes))
    batches = [(client.x_train, client.y_train) for client in fed]

    def once() -> None:
        for x, y in batches:
            network.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]

    return median(_timed(once) for _ in range(repeats + 1))


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer clients and rounds")
    parser.add_argument("--out", type=Path, default=Path("benchmarks.json"), help="where to write the JSON")
    arguments = parser.parse_args()
    clients, rounds = (4, 3) if arguments.quick else (20, 7)
    model = pflego.models.build("mlp", (784,))
    ratios: dict[str, float] = {}
    for classes in (10, 2):
        fed = federation(clients=clients, samples=600, classes=classes)
        floor = plain_pass(fed, model, classes, rounds)
        pflego_50 = seconds_a_round(fed, model, pflego.PFLEGO(steps=50), rounds)
        ratios[f"PFLEGO round, tau 50 / one plain pass, K = {classes}"] = pflego_50 / floor
        pflego_2 = seconds_a_round(fed, model, pflego.PFLEGO(steps=2), rounds)
        ratios[f"PFLEGO, tau 50 / tau 2, K = {classes}"] = pflego_50 / pflego_2
    whole = seconds_a_round(fed, model, pflego.Local(steps=50), 1)
    ratios["50 full passes a round / PFLEGO round, K = 2"] = whole / pflego_50
    table = Table(title=f"MLP 784-200, {clients} clients of 600 samples, {torch.get_num_threads()} threads")
    table.add_column("ratio")
    table.add_column("measured", justify="right")
    for name, ratio in ratios.items():
        table.add_row(name, f"{ratio:.2f}")
    Console().print(table)
    arguments.out.write_text(json.dumps({"quick": arguments.quick, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
