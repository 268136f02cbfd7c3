"""The paper's figure 9 at a smaller scale: the training loss on Omniglot for each pair of client and server rate.

    PFLEGO_DATA=... OMP_NUM_THREADS=1 python examples/omniglot_rates.py --out docs/omniglot-rates.json

The alphabets of `omniglot.py`: every fifth, its drawings as they are, two of them per round. PFLEGO with own heads,
50 steps per round, the paper's three server rates under Adam, and client rates a factor of ten apart, beside the rates
that each client measures for itself: 1/L_i ("auto"), and with the mean of the features taken out ("centred"). The loss
is the participants' after their last step, the mean over ten rounds at a time, since two alphabets of ten differ from
round to round. Everyone's accuracy, adapted, after the last round.

Keeps the curves as JSON, draws them beside it and prints the table. What the file holds already is not trained again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TypedDict

import pflego
from omniglot import Study
from pflego.report.plots import Curve, Panel, draw
from results_file import ResultsFile

SERVER_RATES = (0.001, 0.002, 0.003)
CLIENT_RATES: tuple[float | str, ...] = (0.001, 0.01, 0.1, "auto", "centred")
WINDOW = 10  # rounds that make a point of a curve


class Row(TypedDict):
    """What came of one pair of rates."""

    server_lr: float
    client_lr: float | str
    rounds: int
    seed: int
    losses: list[float | None]  # None: not finite
    adapted: float | None  # everyone, in per cent


def row_of(run: pflego.Run, server_lr: float, client_lr: float | str, seed: int) -> Row:
    """Give what is kept of a run."""
    losses = [row["loss"] or 0.0 for row in run.history]
    means = [fmean(losses[first : first + WINDOW]) for first in range(0, len(losses), WINDOW)]
    accuracy = run.history[-1].get("everyone_adapted_accuracy")
    return {
        "server_lr": server_lr,
        "client_lr": client_lr,
        "rounds": len(losses),
        "seed": seed,
        "losses": [round(mean, 4) if isfinite(mean) else None for mean in means],
        "adapted": None if accuracy is None else round(100 * accuracy, 2),
    }


def table(rows: Sequence[Row]) -> str:
    """Print the last loss and, in brackets, everyone adapted, one line per server rate."""
    found = {(row["server_lr"], row["client_lr"]): row for row in rows}
    lines = ["| | " + " | ".join(f"β = {rate}" for rate in CLIENT_RATES) + " |"]
    lines.append("| --- " * (1 + len(CLIENT_RATES)) + "|")
    for server_lr in SERVER_RATES:
        cells = [_cell(found.get((server_lr, client_lr))) for client_lr in CLIENT_RATES]
        lines.append(f"| ρ = {server_lr} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None or row["losses"][-1] is None or row["adapted"] is None:
        return "–" if row is None else "diverged"
    return f"{row['losses'][-1]:.2f} ({row['adapted']:.1f})"


def points(losses: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Give the rounds after which the losses stand, and the losses, where they are finite."""
    finite = [(float(WINDOW * place), loss) for place, loss in enumerate(losses, start=1) if loss is not None]
    return [place for place, _ in finite], [loss for _, loss in finite]


def picture(rows: Sequence[Row], path: Path) -> None:
    """Draw the loss over the rounds, on a log scale, one panel per server rate."""
    panels = [
        Panel(
            f"ρ = {server_lr}",
            [
                Curve(f"β = {row['client_lr']}", *points(row["losses"]))
                for row in rows
                if row["server_lr"] == server_lr
            ],
            "round",
            "training loss of participants",
            "log",
        )
        for server_lr in SERVER_RATES
    ]
    draw(panels, path)


def main() -> None:
    """Train what is not known yet; keep, draw and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=5, help="take every so many-th alphabet")
    parser.add_argument("--participation", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/omniglot-rates.json"))
    given = parser.parse_args()
    found: ResultsFile[Row] = ResultsFile(given.out, "server_lr", "client_lr", "rounds", "seed")
    study = Study.load(given.every, given.participation, given.seed)
    for client_lr in CLIENT_RATES:
        for server_lr in SERVER_RATES:
            if (server_lr, client_lr, given.rounds, given.seed) not in found:
                algorithm = pflego.PFLEGO(client_lr=client_lr, server_lr=server_lr)  # type: ignore[arg-type]
                run = study.train(algorithm, given.rounds, every=0)
                print(found.add(row_of(run, server_lr, client_lr, given.seed)), flush=True)
    picture(found.rows, given.out.with_suffix(".png"))
    print(table(found.rows))


if __name__ == "__main__":
    main()
