"""Whose loss counts: the mean over clients against the worst tenth, for several objectives.

    python examples/fairness.py --data digits --clients 20 --participation 5 --rounds 20 --objectives mean,qfair:1
    python examples/fairness.py --data fashion-mnist --data-dir ... --seeds 3 --out fairness.json --picture fairness.png

Trains PFLEGO with each objective and prints, and writes as JSON, what everyone came to after the last round: the mean
over clients, the worst tenth, the spread and the Gini coefficient. What the JSON file has already is not done again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import TypedDict

import pflego
from pflego.runs.summary import Summary
from results_file import ResultsFile

OBJECTIVES = "mean,qfair:0.5,qfair:1,qfair:2,qfair:5,cvar:0.2,agnostic:0.002"


class Figures(TypedDict):
    """What one run came to."""

    data: str
    objective: str
    seed: int
    metric: str
    mean: float
    worst_tenth: float
    spread: float
    gini: float


def figures(given: argparse.Namespace, objective: str, seed: int) -> Figures:
    """Train once."""
    federation = pflego.load(
        given.data,
        clients=given.clients,
        classes_per_client=given.classes_per_client,
        column=given.column,
        label=given.label,
        drop=given.drop,
        seed=seed,
        data_dir=given.data_dir,
    )
    model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]), seed=seed)
    run = pflego.train(
        federation,
        model,
        pflego.PFLEGO(client_lr="auto", common_head=given.common_head),
        rounds=given.rounds,
        participation=given.participation,
        objective=objective,
        seed=seed,
        evaluate_every=0,
        progress=False,
    )
    came_to = Summary.of(run)
    return Figures(
        data=Path(given.data).stem,
        objective=objective,
        seed=seed,
        metric=came_to.metric,
        mean=round(came_to.client_mean or 0.0, 5),
        worst_tenth=round(came_to.worst_tenth or 0.0, 5),
        spread=round(came_to.spread or 0.0, 5),
        gini=round(came_to.gini or 0.0, 5),
    )


def draw(found: list[Figures], path: Path) -> None:
    """Draw worst tenth against mean, a panel per data set, each objective's mean over seeds joined to its seeds."""
    from matplotlib import pyplot

    names = list(dict.fromkeys(one["data"] for one in found))
    _, axes = pyplot.subplots(1, len(names), figsize=(5.5 * len(names), 4.2), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        own = [one for one in found if one["data"] == name]
        for objective in dict.fromkeys(one["objective"] for one in own):
            runs = [one for one in own if one["objective"] == objective]
            center = (fmean(one["mean"] for one in runs), fmean(one["worst_tenth"] for one in runs))
            [line] = axis.plot(*center, "o", label=objective)
            for one in runs:
                axis.plot(
                    [center[0], one["mean"]],
                    [center[1], one["worst_tenth"]],
                    color=line.get_color(),
                    alpha=0.3,
                )
        axis.set(title=name, xlabel=f"{own[0]['metric']}, mean over clients", ylabel="worst tenth of clients")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    pyplot.tight_layout()
    pyplot.savefig(path, dpi=110)


def main() -> None:
    """Train all of them and say what they came to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--clients", type=int, default=None)
    parser.add_argument("--classes-per-client", type=int, default=None)
    parser.add_argument("--label", default=None, help="of a table: the column to predict")
    parser.add_argument("--column", default=None, help="of a table: the column that says whose a row is")
    parser.add_argument("--drop", action="append", default=None, help="of a table: a column to leave out")
    parser.add_argument("--common-head", action="store_true")
    parser.add_argument("--participation", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--objectives", default=OBJECTIVES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--picture", type=Path, default=None)
    given = parser.parse_args()
    found: ResultsFile[Figures] = ResultsFile(given.out, "data", "objective", "seed")
    for seed in range(1, given.seeds + 1):
        for objective in given.objectives.split(","):
            if (Path(given.data).stem, objective, seed) not in found:
                print(found.add(figures(given, objective, seed)), flush=True)
    if given.picture:
        draw(found.rows, given.picture)


if __name__ == "__main__":
    main()
