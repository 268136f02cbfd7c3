"""Was the advice right? What `pflego advise` says of small federations, and the same questions put to the test data.

    python -m benchmarks.advice --out docs/advice-check.json

Each federation is asked; then every contender trains on all of the training data, for 80 rounds with everyone in each
(fewer where the contest saw more rounds do harm), at the rate that the contest chose, and is tried on the test data. A
side of a question is the contender of that side which did best in the contest. Keeps, as JSON, what was said, what the
test data say and every contender's figure, and prints the table of docs/advice.md. What the file holds already is not
asked again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import pflego
from pflego.advice.contenders import ALONE, FEDERATED, ONE_MODEL, PERSONAL, contenders
from pflego.advice.contest import Fair, sample_scores
from pflego.advice.statistics import Floats
from pflego.advice.verdict import MARGIN, RELATIVE_MARGIN, Answer, answer
from pflego.advice.words import Advice, Standing
from pflego.algorithms.base import Algorithm
from pflego.comparison.rates import main_rate

FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits, 20 clients, 2 classes each": {"data": "digits", "clients": 20, "classes_per_client": 2},
    "digits, 20 clients, 5 classes each": {"data": "digits", "clients": 20, "classes_per_client": 5},
    "digits, 20 clients, Dirichlet 0.3": {
        "data": "digits",
        "clients": 20,
        "partition": "dirichlet",
        "alpha": 0.3,
    },
    "digits, 6 clients, IID": {"data": "digits", "clients": 6, "partition": "iid"},
    "digits, 100 clients, IID": {"data": "digits", "clients": 100, "partition": "iid"},
    "diabetes, 5 clients": {"data": "diabetes", "clients": 5},
    "diabetes, 20 clients": {"data": "diabetes", "clients": 20},
}
STEPS = 50
NAMES = {
    "alone": "alone",
    "alone-longer": "alone, τ times as many",
    "one-model": "one model",
    "own-heads": "own heads",
    "common-head": "a common head",
}


@dataclass(frozen=True)
class Trained:
    """A contender, trained as the contest advised and tried on the test data."""

    name: str
    rounds: int
    scores: Floats  # (test samples,)


def rounds_for(standing: Standing, most: int, *, higher_is_better: bool) -> int:
    """Stop where the contest saw more training do harm that matters; elsewhere train for `most` rounds."""
    figures = dict(standing.curve)
    best, end = figures[standing.round], standing.curve[-1][1]
    harm = best - end if higher_is_better else end - best
    return standing.round if harm > (MARGIN if higher_is_better else RELATIVE_MARGIN * best) else most


def at_rate(variant: Algorithm, rate: float) -> Algorithm:
    """Give a contender the rate that the contest chose, which may have looked at some of the clients only."""
    return replace(variant, **{main_rate(variant) or "": rate})


def train_all(federation: pflego.Federation, advice: Advice, rounds: int) -> dict[str, Trained]:
    """Train every contender on all training data."""
    model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]))
    first = {one.name: one.variants[0] for one in contenders(model, federation, steps=STEPS)}
    trained = {}
    for standing in advice.standings:
        length = rounds_for(standing, rounds, higher_is_better=federation.task.higher_is_better)
        run = pflego.train(
            federation,
            model,
            at_rate(first[standing.name], standing.rate),
            rounds=length,
            evaluate_every=None,
            progress=False,
        )
        trained[standing.name] = Trained(standing.name, length, sample_scores(run))
    return trained


def put_to_test(
    federation: pflego.Federation,
    advice: Advice,
    trained: dict[str, Trained],
    ours: Sequence[str],
    theirs: Sequence[str],
) -> Answer:
    """Ask the test data whether the better of `ours` in the contest beats the better of `theirs`."""
    owners = np.repeat(np.arange(len(federation)), [len(client.x_test) for client in federation])
    several = np.array([federation.classes is None or len(client.classes) > 1 for client in federation])
    tried = several[owners]
    sign = 1 if federation.task.higher_is_better else -1
    contest = {standing.name: sign * standing.figure for standing in advice.standings}

    def side(names: Sequence[str]) -> Fair:
        name = max((name for name in names if name in contest), key=contest.__getitem__)
        return Fair(owners[tried], trained[name].scores[tried], ())

    ids = [str(client_id) for client_id in federation.ids]
    return answer("", side(ours), side(theirs), ids, federation.task, shrinking=False, seed=0)


def row_of(called: str, rounds: int) -> dict[str, Any]:
    """Ask for advice, and check it."""
    settings = dict(FEDERATIONS[called])
    federation = pflego.load(settings.pop("data"), **settings)
    advice = pflego.advise(federation, steps=STEPS)
    trained = train_all(federation, advice, rounds)
    task = federation.task
    questions = {
        "federating": (advice.federating, FEDERATED, ALONE),
        "personalising": (advice.personalising, PERSONAL, [ONE_MODEL]),
    }
    row: dict[str, Any] = {"federation": called, "metric": task.metric, "start": advice.start.contender}
    for question, (said, ours, theirs) in questions.items():
        test = put_to_test(federation, advice, trained, ours, theirs)
        row[question] = {
            "said": said.verdict,
            "said_gain": round(said.gain, 4),
            "test": test.verdict,
            "test_gain": round(test.gain, 4),
            "test_interval": [round(test.interval.low, 4), round(test.interval.high, 4)],
        }
    row["test_figures"] = {
        name: {"rounds": one.rounds, task.metric: round(task.metric_value(float(one.scores.mean())), 4)}
        for name, one in trained.items()
    }
    return row


def words(row: dict[str, Any]) -> str:
    """Print a row of the table."""
    accuracy = row["metric"] == "accuracy"
    figures = {name: one[row["metric"]] for name, one in row["test_figures"].items()}
    best = (max if accuracy else min)(figures.values())

    def shown(figure: float) -> str:
        return f"{100 * figure:.1f} %" if accuracy else f"{figure:.3f}"

    cells = [row["federation"]]
    for question in ("federating", "personalising"):
        gain = row[question]["test_gain"]
        size = f"{100 * gain:+.1f} points" if accuracy else f"{gain:+.3f} of rmse"
        cells += [row[question]["said"], f"{row[question]['test']}, {size.replace('-', '−')}"]
    winners = " and ".join(NAMES[name] for name, figure in figures.items() if figure == best)
    start = row["start"]
    cells.append(NAMES[start] + ("" if figures[start] == best else f", {shown(figures[start])}"))
    cells.append(f"{winners}, {shown(best)}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Ask and check what is not known yet; keep and print what there is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.advice",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--federations", default=";".join(FEDERATIONS), help="some of them, separated by ;")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--out", type=Path, default=Path("runs/advice-check.json"))
    given = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(given.out.read_text()) if given.out.exists() else []
    for called in given.federations.split(";"):
        if called not in {row["federation"] for row in rows}:
            rows.append(row_of(called, given.rounds))
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    print(
        "| federation | federating: said | test | personalising: said | test | start with | best on the test data |"
    )
    print("| --- " * 7 + "|")
    print("\n".join(map(words, rows)))


if __name__ == "__main__":
    main()
