"""Somebody new: how good a model does a client get that was not there, and from how many samples of its own?

    PFLEGO_DATA=... python examples/newcomers.py --data watch --rounds 15 --out docs/newcomers.json
    python examples/newcomers.py --data heart --rounds 20 --counts 5,20,0 --out runs/newcomers.json

Every client is left out in turn: the others train, by each method, and then it comes, with the first few samples of
each class that it has, and is tested on all of its test samples. PFLEGO gives it a head for the others' backbone,
FedAvg a copy of their model that it fine-tunes; alone, it starts with the weights that they all started with.

Keeps what everybody came to as JSON, draws the mean over newcomers beside it and prints it, with a 95 % interval. What
the file holds already is not trained again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import TypedDict

import numpy as np

import pflego
from demo import fine_tuned
from demo_figures import percent
from pflego.data.left_out import left_out
from pflego.models import usual
from pflego.report.plots import Curve, Panel, draw
from results_file import ResultsFile

ALONE = "alone"
FINE_TUNE = 50  # epochs of a newcomer on a copy of FedAvg's model
EPOCHS_ALONE = 200  # of a newcomer with a network of its own
METHODS: dict[str, pflego.Algorithm] = {
    "PFLEGO": pflego.PFLEGO(),
    "PFLEGO, clients at 1/L": pflego.PFLEGO(client_lr="auto"),
    "PFLEGO, common head": pflego.PFLEGO(common_head=True),
    "FedAvg, fine-tuned": pflego.FedAvg(epochs=1, batch_size=32, client_lr=0.1),
}


class Newcomer(TypedDict):
    """What one client came to."""

    data: str
    rounds: int
    seed: int
    client: str
    method: str
    count: int  # of samples of each class, at most; 0: all there are
    samples: int
    accuracy: float


def some(client: pflego.Client, count: int) -> pflego.Client:
    """Give a client that has only its first samples of each class; 0: all of them."""
    if not count:
        return client
    places = np.sort(np.concatenate([np.flatnonzero(client.y_train == c)[:count] for c in client.classes]))
    return pflego.Client(
        client.id, client.x_train[places], client.y_train[places], client.x_test, client.y_test
    )


def alone(client: pflego.Client, model: pflego.Model, *, seed: int) -> float:
    """Let a client learn by itself."""
    method = pflego.Local(epochs=EPOCHS_ALONE, batch_size=32, client_lr=0.1)
    run = pflego.train(
        pflego.Federation([client]), model, method, rounds=1, participation=1, seed=seed, progress=False
    )
    return run.evaluate()[0]["accuracy"] or 0.0


def others(
    federation: pflego.Federation, model: pflego.Model, name: str, rounds: int, seed: int
) -> pflego.Run:
    """Let everybody else learn; all take part in every round. Who comes then fine-tunes what FedAvg has learned."""
    run = pflego.train(
        federation,
        model,
        METHODS[name],
        rounds=rounds,
        participation=len(federation),
        seed=seed,
        evaluate_every=None,
        progress=False,
    )
    return fine_tuned(run, FINE_TUNE) if isinstance(run.algorithm, pflego.FedAvg) else run


def table(rows: list[Newcomer], counts: list[int]) -> str:
    """Print the mean over newcomers, in per cent, with a 95 % interval."""
    lines = [
        "| samples of each class | " + " | ".join(str(count) if count else "all" for count in counts) + " |"
    ]
    lines.append("| --- " * (1 + len(counts)) + "|")
    for name in [*METHODS, ALONE]:
        cells = [percent(accuracies(rows, name, count)) for count in counts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def accuracies(rows: list[Newcomer], method: str, count: int) -> list[float]:
    """List what newcomers came to."""
    return [row["accuracy"] for row in rows if (row["method"], row["count"]) == (method, count)]


def picture(rows: list[Newcomer], counts: list[int], data: str, path: Path) -> None:
    """Draw accuracy over the samples that newcomers bring."""

    def samples(count: int) -> float:
        return fmean(row["samples"] for row in rows if row["count"] == count)

    curves = [
        Curve(
            name,
            [samples(count) for count in counts],
            [100 * fmean(accuracies(rows, name, count)) for count in counts],
            "--" if name == ALONE else "-",
        )
        for name in [*METHODS, ALONE]
    ]
    panel = Panel(f"{data}: somebody new", curves, "training samples of its own", "accuracy, %", "log x")
    draw([panel], path)


def main() -> None:
    """Leave everybody out in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="heart")
    parser.add_argument("--rounds", type=int, default=20, help="that the others train")
    parser.add_argument("--counts", default="1,2,5,10,0", help="samples of each class; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/newcomers.json"))
    given = parser.parse_args()
    counts = [int(word) for word in given.counts.split(",")]
    found: ResultsFile[Newcomer] = ResultsFile(
        given.out, "data", "rounds", "seed", "client", "method", "count"
    )
    everybody = pflego.load(given.data, seed=given.seed)
    for name in map(str, everybody.ids):
        federation = pflego.load(given.data, leave_out=[name], seed=given.seed)
        newcomer, _ = left_out(federation, name)
        shape = tuple(newcomer.x_train.shape[1:])
        model = pflego.models.build(usual(given.data), shape, seed=given.seed)
        for method in [*METHODS, ALONE]:
            missing = [
                count
                for count in counts
                if (given.data, given.rounds, given.seed, name, method, count) not in found
            ]
            if not missing:
                continue
            run = None if method == ALONE else others(federation, model, method, given.rounds, given.seed)
            for count in missing:
                client = some(newcomer, count)
                if run is None:
                    accuracy = alone(client, model, seed=given.seed)
                else:
                    accuracy = run.join(client, alone=0).score.value(federation.task) or 0.0
                found.add(
                    Newcomer(
                        data=given.data,
                        rounds=given.rounds,
                        seed=given.seed,
                        client=name,
                        method=method,
                        count=count,
                        samples=len(client.y_train),
                        accuracy=accuracy,
                    )
                )
            print(name, method, flush=True)
    rows = [row for row in found if row["data"] == given.data]
    picture(rows, counts, given.data, given.out.with_suffix(".png"))
    print(table(rows, counts))


if __name__ == "__main__":
    main()
