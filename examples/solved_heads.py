"""What do heads that are solved for bring? PFLEGO(head_optimizer="solve") against tau = 50 steps.

    PFLEGO_DATA=... python examples/solved_heads.py --out docs/solved-heads.json

Own heads and a common one, on digits (5 of 20 clients, 40 rounds) and MNIST (20 of 100 clients, 50 rounds), 5 classes
per client, the paper's MLP, Adam at the server. Keeps participants, the mean of the last ten rounds, and everyone
after the last, and prints the table of docs/method.md. What the file holds already is not trained again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import pflego
from results_file import ResultsFile

SIZES = {  # clients, participants, rounds
    "digits": (20, 5, 40),
    "mnist": (100, 20, 50),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "own heads, τ = 50": {},
    "own heads, solved": {"head_optimizer": "solve"},
    "common head, τ = 50": {"common_head": True},
    "common head, solved": {"common_head": True, "head_optimizer": "solve"},
}
LAST = 10


def train(data: str, setting: str, seed: int) -> dict[str, Any]:
    """Train one cell, and give its figures in per cent."""
    clients, participants, rounds = SIZES[data]
    federation = pflego.load(data, clients=clients, classes_per_client=5, seed=seed)
    model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]), seed=seed)
    run = pflego.train(
        federation,
        model,
        pflego.PFLEGO(**SETTINGS[setting]),
        rounds=rounds,
        participation=participants,
        seed=seed,
        evaluate_every=0,
        progress=False,
    )
    last = fmean(row["participants_accuracy"] or 0.0 for row in run.history[-LAST:])
    return {
        "data": data,
        "setting": setting,
        "seed": seed,
        "participants": round(100 * last, 2),
        "everyone": round(100 * (run.history[-1]["everyone_accuracy"] or 0.0), 2),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Print the mean over seeds of participants / everyone, one row per data set."""
    lines = ["| | " + " | ".join(SETTINGS) + " |", "| --- " * (1 + len(SETTINGS)) + "|"]
    for data in dict.fromkeys(row["data"] for row in rows):
        clients, participants, rounds = SIZES[data]
        words = []
        for setting in SETTINGS:
            own = [row for row in rows if (row["data"], row["setting"]) == (data, setting)]
            both = (
                [fmean(row[figure] for row in own) for figure in ("participants", "everyone")] if own else []
            )
            words.append(" / ".join(f"{figure:.2f}" for figure in both) or "–")
        lines.append(
            f"| {data}, {participants} of {clients} clients, {rounds} rounds | " + " | ".join(words) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train what is not known yet; keep and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits,mnist")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--out", type=Path, default=Path("runs/solved-heads.json"))
    given = parser.parse_args()
    found: ResultsFile[dict[str, Any]] = ResultsFile(given.out, "data", "setting", "seed")
    for data in given.data.split(","):
        for seed in map(int, given.seeds.split(",")):
            for setting in SETTINGS:
                if (data, setting, seed) not in found:
                    print(found.add(train(data, setting, seed)), flush=True)
    print(table(found.rows))


if __name__ == "__main__":
    main()
