"""Bytes against accuracy: what it costs to compress contributions, by a method of gradients and one that averages.

    python examples/compression.py --data digits --rounds 20 --json found.json --picture found.png
    python examples/compression.py --data mnist --data-dir ... --clients 200 --participation 10 --rounds 40

Trains PFLEGO and FedAvg with each compression, at the same rates, and notes after some rounds how many bytes clients
have sent and how good everyone's model is, after its local steps. What the JSON file has already is not done again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypedDict

import pflego
from pflego.report.plots import Curve, Panel, draw
from results_file import ResultsFile

KINDS = "none,quantise:8,quantise:4,quantise:2,random:0.1,top:0.05,top:0.01,sign"


class Figures(TypedDict):
    """What one run came to."""

    method: str
    compression: str
    seed: int
    bytes_up: float  # of one client in one round
    megabytes: list[float]  # sent by all clients up to a round
    accuracy: list[float]  # of everyone, then


def method(name: str, given: argparse.Namespace) -> pflego.Algorithm:
    """Make a method with its settings."""
    if name == "pflego":
        return pflego.PFLEGO(client_lr="auto")
    return pflego.FedAvg(steps=given.steps, client_lr=given.client_lr, labels="global")


def figures(given: argparse.Namespace, name: str, compression: str, seed: int) -> Figures:
    """Train once."""
    federation = pflego.load(
        given.data,
        clients=given.clients,
        classes_per_client=given.classes,
        seed=seed,
        data_dir=given.data_dir,
    )
    run = pflego.train(
        federation,
        pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]), seed=seed),
        method(name, given),
        rounds=given.rounds,
        participation=given.participation,
        compression=None if compression == "none" else compression,
        seed=seed,
        evaluate_every=given.every,
        evaluate_adapted=True,
        progress=False,
    )
    sent, megabytes, accuracy = 0.0, [], []
    for row in run.history:
        sent += row["bytes_up"] or 0
        if (value := row.get("everyone_adapted_accuracy")) is not None:
            megabytes.append(round(sent / 1e6, 4))
            accuracy.append(round(value, 5))
    last = run.history[-1]
    return Figures(
        method=name,
        compression=compression,
        seed=seed,
        bytes_up=(last["bytes_up"] or 0) / given.participation,
        megabytes=megabytes,
        accuracy=accuracy,
    )


def picture(found: list[Figures], path: Path) -> None:
    """Draw accuracy over the bytes that were sent, a panel per method."""
    panels = []
    for name in dict.fromkeys(one["method"] for one in found):
        own = [one for one in found if one["method"] == name and one["seed"] == found[0]["seed"]]
        curves = [
            Curve(one["compression"], one["megabytes"], [100 * value for value in one["accuracy"]])
            for one in own
        ]
        lowest = min(y for curve in curves for y in curve.y)
        panels.append(Panel(name, curves, "MB sent by all clients", "accuracy, %", "log x", lowest - 1))
    draw(panels, path, columns=2)


def main() -> None:
    """Train what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--methods", default="pflego,fedavg")
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--participation", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="FedAvg's")
    parser.add_argument("--client-lr", type=float, default=0.1, help="FedAvg's")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("compression.json"))
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    found: ResultsFile[Figures] = ResultsFile(given.json, "method", "compression", "seed")
    for seed in range(given.seeds):
        for name in given.methods.split(","):
            for kind in given.kinds.split(","):
                if (name, kind, seed) not in found:
                    found.add(figures(given, name, kind, seed))
    for one in found:
        print(
            f"{one['method']:8} {one['compression']:12} seed {one['seed']}: {one['bytes_up']:10,.0f} bytes a client "
            f"and round, accuracy {100 * one['accuracy'][-1]:.2f} %"
        )
    if given.picture:
        picture(found.rows, given.picture)


if __name__ == "__main__":
    main()
