"""Equal rounds, passes and bytes: how far does each method come in 200 rounds of one pass each way?

    PFLEGO_DATA=... OMP_NUM_THREADS=1 python examples/equal_rounds.py --out docs/equal-rounds.json
    python examples/equal_rounds.py --data digits --classes 2 --clients 20 --participation 5 --rounds 8

PFLEGO's heads have their defaults, whatever the data: own and common ones, by one joint step per round or by
mini-batches of 32; the common ones also with a rate that was searched for. Rivals take mini-batches of 32 for one
epoch, and their main rate is chosen by `pflego compare`'s search, on held-out training data and with the first seed;
seeds that are added later have the rate that it found. FedAdam's clients are tried at two rates. Three figures, in per
cent: the participants' test accuracy, the mean over the last ten rounds; everyone's after the last; and everyone's once
they have adapted. Other methods can be given as `pflego compare` spells variants.

Keeps the figures as JSON, draws the first seed's beside it and prints the table of docs/results.md. What the file holds
already is not trained again, and an interrupted run goes on in its folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from pflego.comparison.compare import Entry, compare
from pflego.report.plots import picture as drawing
from results_file import ResultsFile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCHES = "epochs=1+batch_size=32"
METHODS = {
    "PFLEGO": "pflego+server_lr=0.003",
    "PFLEGO, clients at 1/L": "pflego+server_lr=0.003+client_lr=auto",
    "PFLEGO, mini-batches": "pflego+batch_size=32+server_lr=0.01",
    "PFLEGO, solved": "pflego+head_optimizer=solve+server_lr=0.003",
    "PFLEGO, common head": "pflego+common_head=true+server_lr=0.002",
    "PFLEGO, common head, solved": "pflego+common_head=true+head_optimizer=solve+server_lr=0.002",
    "PFLEGO, common head, rate searched for": "pflego+common_head=true",
    "PFLEGO, common head, mini-batches": "pflego+common_head=true+batch_size=32+server_lr=0.01",
    "PFLEGO, common head, mini-batches, rate searched for": "pflego+common_head=true+batch_size=32",
    "FedAdam, clients at 0.1": f"fedopt+{BATCHES}+client_lr=0.1",
    "FedAdam, clients at 0.03": f"fedopt+{BATCHES}+client_lr=0.03",
    "FedAvg": f"fedavg+{BATCHES}",
    "FedBabu": f"fedbabu+{BATCHES}",
    "FedPer": f"fedper+{BATCHES}",
    "FedRep": "fedrep+epochs=2+batch_size=32",  # one for the head on kept features, one for the backbone
    "Ditto": f"ditto+{BATCHES}",
    "alone": f"local+{BATCHES}",
}
DRAWN = {  # what a row of the picture shows: the better of these methods
    "PFLEGO, common head, mini-batches": ["PFLEGO, common head, mini-batches"],
    "PFLEGO, common head": ["PFLEGO, common head"],
    "PFLEGO, own heads, mini-batches": ["PFLEGO, mini-batches"],
    "PFLEGO, own heads": ["PFLEGO"],
    "FedAdam": ["FedAdam, clients at 0.1", "FedAdam, clients at 0.03"],
    **{name: [name] for name in ("FedAvg", "FedBabu", "Ditto", "FedPer", "FedRep", "alone")},
}
COLUMNS = 3  # of panels
FIGURES = ("participants", "everyone", "adapted")


def row_of(
    entry: Entry, method: str, data: str, classes: int, known: dict[str, float] | None
) -> dict[str, Any]:
    """Give what is kept of a run, with the rate that was searched for, now or with an earlier seed."""
    summary, rate = entry.summary, entry.rate
    figures = (summary.participants, summary.everyone, summary.everyone_adapted)
    return {
        "data": data,
        "classes": classes,
        "method": method,
        "seed": entry.seed,
        "rounds": summary.rounds,
        "rate": known if rate is None else {rate.name: rate.value},
        **{name: round(100 * (figure or 0.0), 2) for name, figure in zip(FIGURES, figures, strict=True)},
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Print participants / everyone / everyone adapted; of several seeds mean, deviation, and how many they are."""
    cells: dict[tuple[str, int, int], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        place = row["data"], row["classes"], row["rounds"]
        cells.setdefault(place, {}).setdefault(row["method"], []).append(row)
    places = sorted(cells)
    lines = [
        "| | " + " | ".join(f"{data}, {classes}, T = {rounds}" for data, classes, rounds in places) + " |"
    ]
    lines.append("| --- " * (1 + len(places)) + "|")
    others = {row["method"] for row in rows} - METHODS.keys()
    for method in [*METHODS, *sorted(others)]:
        figures = [_figures(cells[place].get(method, [])) for place in places]
        lines.append(f"| {method} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def _figures(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "–"
    if len(rows) == 1:
        return " / ".join(f"{rows[0][name]:.2f}" for name in FIGURES)
    several = [[row[name] for row in rows] for name in FIGURES]
    return " / ".join(f"{fmean(values):.2f} ± {stdev(values):.2f}" for values in several) + f" ({len(rows)})"


def picture(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw everyone's accuracy with the first seed, one panel per federation; of none of the methods no picture."""
    seed = min(row["seed"] for row in rows)
    federations: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        if row["seed"] == seed and any(row["method"] in methods for methods in DRAWN.values()):
            federations.setdefault(row["data"], {}).setdefault(row["classes"], []).append(row)
    panels = [
        (f"{data}, {classes} classes per client", own)
        for data, cells in federations.items()
        for classes, own in sorted(cells.items())
    ]
    if not panels:
        return
    with drawing(path, len(panels), columns=COLUMNS) as (_, axes):
        for number, (axis, (title, own)) in enumerate(zip(axes, panels, strict=True)):
            _dots(axis, own)
            axis.set(title=title, xlabel="everyone, %: ● adapted, ○ as they are")
            axis.set_yticks(range(len(DRAWN)), DRAWN if number % COLUMNS == 0 else [""] * len(DRAWN))


def _dots(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Draw a dot and a ring per method; rings far to the left of all dots are pointed at."""
    shown = {}
    for place, methods in enumerate(DRAWN.values()):
        if own := [row for row in rows if row["method"] in methods]:
            shown[place] = max(own, key=itemgetter("adapted"))
    lowest = min(row["adapted"] for row in shown.values())
    highest = max(row[figure] for row in shown.values() for figure in ("adapted", "everyone"))
    margin = 0.08 * (highest - lowest) or 1.0
    for place, row in shown.items():
        colour = "C0" if row["method"].startswith("PFLEGO") else "C7"
        ring, mark = max((row["everyone"], "o"), (lowest - margin, "<"))
        axis.plot(ring, place, mark, color=colour, markerfacecolor="white", clip_on=False)
        axis.plot(row["adapted"], place, "o", color=colour)
    axis.set(xlim=(lowest - margin, highest + margin), ylim=(len(DRAWN) - 0.5, -0.5))


def main() -> None:
    """Train what is not known yet; keep and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist,fashion-mnist")
    parser.add_argument("--classes", default="2,5,10", help="per client")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--participation", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--seeds", default="1", help="rates are searched for with the first, if not known yet"
    )
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons; or variants")
    parser.add_argument("--folder", type=Path, default=Path("runs/equal-rounds"), help="of the runs")
    parser.add_argument("--out", type=Path, default=Path("runs/equal-rounds.json"))
    given = parser.parse_args()
    found: ResultsFile[dict[str, Any]] = ResultsFile(given.out, "data", "classes", "method", "seed", "rounds")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for data in given.data.split(","):
        for classes in map(int, given.classes.split(",")):
            settings = {
                "data": data,
                "clients": given.clients,
                "classes_per_client": classes,
                "participation": str(given.participation),
                "rounds": given.rounds,
                "evaluate_every": 0,
            }
            for method in given.methods.split(";"):
                new = [s for s in seeds if (data, classes, method, s, given.rounds) not in found]
                if not new:
                    continue
                cell = {"data": data, "classes": classes, "method": method, "rounds": given.rounds}
                known = next((row["rate"] for row in found if cell.items() <= row.items()), None)
                rate = [f"{name}={value}" for name, value in (known or {}).items()]
                variant = "+".join([METHODS.get(method, method), *rate])
                folder = given.folder / f"{data}-{classes}-{given.rounds}"
                for entry in compare(settings, [variant], new, folder, progress=False):
                    print(found.add(row_of(entry, method, data, classes, known)), flush=True)
    picture(found.rows, given.out.with_suffix(".png"))
    print(table([row for row in found if row["seed"] in seeds]))


if __name__ == "__main__":
    main()
