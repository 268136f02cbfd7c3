"""What robust rules cost clients with rare data: liars against a federation in which few clients hold shoes.

    python examples/robustness.py --data-dir ... --out runs/robustness --rounds 60 --json robustness.json

Of Fashion-MNIST, most clients hold two kinds of clothes, and a few hold two kinds of shoes. Every rule of aggregation
meets every lie (`pflego attack`); figures are of honest clients, all of them, their worst tenth and those with shoes.
Interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Annotated

import numpy as np
from torch import Tensor

from pflego import Krum, train
from pflego.comparison.attack import Trial, attack
from pflego.comparison.attack_figures import draw, sheets
from pflego.comparison.tables import as_markdown
from pflego.data.sets import data_set
from pflego.declaration import InPython
from pflego.files import make_folder
from pflego.settings.experiment import Experiment
from results_file import write_rows

SHOES, CLOTHES = [5, 7, 9], [0, 1, 2, 3, 4, 6, 8]
LIES = "sign,sign:10,scale,noise,samples+sign,labels,shuffle,little,little:1.5"


def divide(given: argparse.Namespace) -> Path:
    """Write the federation to a file: who comes last has shoes."""
    found = data_set("fashion-mnist", data_dir=given.data_dir)
    rng = np.random.default_rng(0)
    pools = {
        part: {c: rng.permutation(np.flatnonzero(labels == c)) for c in SHOES + CLOTHES}
        for part, labels in (("train", found.y_train), ("test", found.y_test))
    }
    arrays: dict[str, list[np.ndarray]] = {}
    for client in range(given.clients):
        kinds = SHOES if client >= given.clients - given.rare else CLOTHES
        held = rng.choice(kinds, size=2, replace=False)
        for part, each in (("train", given.samples // 2), ("test", given.tests // 2)):
            for kind in held:
                mine = rng.choice(pools[part][int(kind)], size=each, replace=False)
                arrays.setdefault(f"x_{part}", []).append(np.asarray(getattr(found, f"x_{part}"))[mine])
                arrays.setdefault(f"y_{part}", []).append(np.asarray(getattr(found, f"y_{part}"))[mine])
                arrays.setdefault(f"client_{part}", []).append(np.full(each, client))
    make_folder(given.out)
    path: Path = given.out / "shoes.npz"
    np.savez_compressed(path, **{name: np.concatenate(parts) for name, parts in arrays.items()})  # type: ignore[arg-type]
    return path


def of_rare(trial: Trial, given: argparse.Namespace) -> float:
    """Average over the honest clients with shoes."""
    rare = {str(client) for client in range(given.clients - given.rare, given.clients)}
    return fmean(f for client, f in trial.figures.items() if client in rare and f is not None)


@dataclass(frozen=True)
class Watched(Krum):
    """Krum, which notes whom it follows: the place in the cohort, round by round."""

    followed: Annotated[list[int], InPython] = field(default_factory=list)

    def one_of(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Choose, and note it."""
        chosen = super().one_of(rows, weights)
        self.followed.append(int((rows - chosen).square().sum(dim=1).argmin()))
        return chosen


def count_followed(settings: Mapping[str, object], given: argparse.Namespace) -> None:
    """Say how often Krum follows a client with shoes, where nobody lies."""
    rule = Watched(ceil(given.share * given.participation))
    experiment = Experiment.build({**settings, "evaluate_every": 0})
    options = {"participation": given.participation, "rounds": given.rounds, "aggregation": rule}
    run = train(experiment.federation, experiment.model, experiment.algorithm, **options, evaluate_every=None)
    asked = [run.participants(number) for number in range(1, given.rounds + 1)]
    first = given.clients - given.rare
    rare = sum(int(client) >= first for cohort in asked for client in cohort)
    chosen = sum(int(cohort[place]) >= first for cohort, place in zip(asked, rule.followed, strict=True))
    print(
        f"{rare} of {given.participation * given.rounds} asked have shoes; {rule} followed {chosen} of them"
    )


def main() -> None:
    """Attack it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--algorithm", default="pflego")
    parser.add_argument("--rules", help="a list; all, if not given")
    parser.add_argument("--lies", default=LIES)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rare", type=int, default=12)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--participation", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/robustness"))
    parser.add_argument("--followed", action="store_true", help="count whom Krum follows, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    settings = {
        "data": str(divide(given)),
        "column": "client",
        "algorithm": given.algorithm,
        "client_lr": "auto",
        "participation": str(given.participation),
        "rounds": given.rounds,
        "checkpoint_every": given.rounds,
    }
    trials = attack(
        settings,
        rules=None if given.rules is None else given.rules.split(","),
        lies=given.lies.split(","),
        share=given.share,
        seeds=range(given.seeds),
        folder=given.out / given.algorithm,
    )
    print(as_markdown(sheets(trials)))
    rows = []
    for trial in trials:
        row = {
            key: value for key, value in asdict(trial).items() if key not in ("figures", "higher_is_better")
        }
        rows.append({"algorithm": given.algorithm, **row, "rare": of_rare(trial, given)})
        print(f"{trial.rule:12} {trial.lie:14} seed {trial.seed}: shoes {rows[-1]['rare']:.4f}")
    if given.followed:
        count_followed(settings, given)
    if given.json:
        write_rows(
            given.json, [{k: round(v, 5) if isinstance(v, float) else v for k, v in r.items()} for r in rows]
        )
    if given.picture:
        draw(trials, given.picture)


if __name__ == "__main__":
    main()
