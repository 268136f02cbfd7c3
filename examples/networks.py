"""What losses and deadlines do, and what each rule for missing replies makes of them.

    python examples/networks.py --clients 20 --participation 5 --rounds 10
    python examples/networks.py --data mnist --data-dir ... --seeds 2 --out networks.json --picture networks.png

Clients differ in size (a Dirichlet partition) and in speed. Trains PFLEGO under no losses, losses that come alone,
losses in bursts, and a deadline that a part of the clients never meets, with each rule of `missing=`. Prints, and
writes as JSON, how good everyone was after which round and after how many seconds of waiting, and the mean over the
clients that were heard and over those that never were. What the JSON file has already is not done again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import TypedDict

import pflego
from pflego.exchange.weighting import Missing
from pflego.runs.summary import Summary
from results_file import ResultsFile

RULES: tuple[Missing, ...] = ("zero", "renormalise", "normalise", "inverse")
SPEED = pflego.Speed(samples_per_second=2000, spread=0.7, bandwidth=1e6, latency=0.05)


class Course(TypedDict):
    """How one run went."""

    network: str
    missing: str
    seed: int
    points: list[tuple[int, float, float]]  # round, seconds waited so far, everyone's accuracy
    never_heard: int
    unheard: float  # their part of the loss
    heard_mean: float  # accuracy, mean over clients
    unheard_mean: float | None


def course(given: argparse.Namespace, network: str, missing: Missing, seed: int) -> Course:
    """Train once."""
    conditions = {
        "no losses": {},
        "30 % lost": {"dropout": 0.3},
        "30 % lost, in bursts": {"dropout": 0.3, "burst": 10.0},
        "deadline": {"deadline": given.deadline},
    }
    federation = pflego.load(
        given.data,
        clients=given.clients,
        partition="dirichlet",
        alpha=0.5,
        seed=seed,
        data_dir=given.data_dir,
    )
    model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]), seed=seed)
    run = pflego.train(
        federation,
        model,
        pflego.PFLEGO(client_lr="auto"),
        rounds=given.rounds,
        participation=given.participation,
        missing=missing,
        speed=SPEED,
        seed=seed,
        evaluate_every=max(1, given.rounds // 20),
        progress=False,
        **conditions[network],
    )
    points, waited = [], 0.0
    for row in run.history:
        waited += row["waited"] or 0.0
        if (everyone := row.get("everyone_accuracy")) is not None:
            points.append((int(row["round"] or 0), round(waited, 3), round(everyone, 5)))
    came_to = Summary.of(run)
    figures = {row["id"]: row["accuracy"] for row in run.evaluate() if row["accuracy"] is not None}
    gone = [figures[client] or 0.0 for client in came_to.never_heard if client in figures]
    there = [figure or 0.0 for client, figure in figures.items() if client not in came_to.never_heard]
    return Course(
        network=network,
        missing=missing,
        seed=seed,
        points=points,
        never_heard=len(came_to.never_heard),
        unheard=round(came_to.unheard, 4),
        heard_mean=round(fmean(there), 5),
        unheard_mean=round(fmean(gone), 5) if gone else None,
    )


def draw(found: list[Course], path: Path) -> None:
    """Draw everyone's accuracy over rounds and over seconds: a colour per network, a line per rule, the seeds' mean."""
    from matplotlib import pyplot

    _, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for colour, name in enumerate(dict.fromkeys(one["network"] for one in found)):
        for rule in RULES:
            runs = [one["points"] for one in found if one["network"] == name and one["missing"] == rule]
            if not runs:
                continue
            means = [[fmean(values) for values in zip(*at, strict=True)] for at in zip(*runs, strict=True)]
            for place, axis in enumerate(axes):
                axis.plot(
                    [at[place] for at in means],
                    [100 * at[2] for at in means],
                    color=f"C{colour}",
                    label=name if rule == "zero" else None,
                    linewidth=1.4 if rule == "zero" else 0.6,
                )
    axes[0].set(xlabel="round", ylabel="everyone, %")
    axes[1].set(xlabel="seconds that the server waited")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    pyplot.tight_layout()
    pyplot.savefig(path, dpi=110)


def main() -> None:
    """Train under all of them and say how it went."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--participation", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--deadline", type=float, default=4.0)
    parser.add_argument("--networks", default="no losses;30 % lost;30 % lost, in bursts;deadline")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--picture", type=Path, default=None)
    given = parser.parse_args()
    found: ResultsFile[Course] = ResultsFile(given.out, "network", "missing", "seed")
    for seed in range(1, given.seeds + 1):
        for network in given.networks.split(";"):
            for rule in RULES:
                if (network, rule, seed) in found or (network == "no losses" and rule == "renormalise"):
                    continue  # without losses, renormalise is zero
                done = found.add(course(given, network, rule, seed))
                print({**done, "points": done["points"][-1]}, flush=True)
    if given.picture:
        draw(found.rows, given.picture)


if __name__ == "__main__":
    main()
