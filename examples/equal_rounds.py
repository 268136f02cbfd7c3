"""Equal rounds, passes and bytes: how far does each method come in 200 rounds of one pass each way?

    PFLEGO_DATA=... OMP_NUM_THREADS=1 python examples/equal_rounds.py --out docs/equal-rounds.json
    python examples/equal_rounds.py --methods "" --seeds 1,2,3 --out docs/equal-rounds.json --picture equal-rounds.png
    python examples/equal_rounds.py --data digits --classes 2 --clients 20 --participation 5 --rounds 8

PFLEGO's heads have their defaults, whatever the data: own and common ones, by one joint step per round or by
mini-batches of 32; the common ones also with a stronger decay of what is one's own, and with a rate that was searched
for. Rivals take mini-batches of 32 for one epoch, and their main rate is chosen by `pflego compare`'s search, on
held-out training data and with the first seed; seeds that are added later have the rate that it found. Three figures,
in per cent: the participants' test accuracy, the mean over the last ten rounds; everyone's after the last; and
everyone's once they have adapted. Other methods can be given as `pflego compare` spells variants.

Keeps the figures as JSON and prints a table of each, of several seeds mean and deviation; of FedAdam, whose clients are
tried at two rates, the better. What the file holds already is not trained again, and an interrupted run goes on in its
folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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
    "PFLEGO, common head, mini-batches, decay 1": "pflego+common_head=true+batch_size=32+server_lr=0.01+head_decay=1",
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
FEDADAM = ("FedAdam, clients at 0.1", "FedAdam, clients at 0.03")
DRAWN = [
    "PFLEGO, common head, mini-batches",
    "PFLEGO, common head, mini-batches, decay 1",
    "PFLEGO, common head",
    "PFLEGO, mini-batches",
    "PFLEGO",
    *("FedAdam", "FedAvg", "FedBabu", "Ditto", "FedPer", "FedRep", "alone"),
]
COLUMNS = 3  # of panels
FIGURES = ("participants", "everyone", "adapted")
Row = dict[str, Any]


def row_of(entry: Entry, method: str, data: str, classes: int, known: dict[str, float] | None) -> Row:
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


def federations(rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, list[Row]]]:
    """Gather the rows of each federation and method. FedAdam: the better of its two, by the mean once adapted."""
    found: dict[tuple[str, int], dict[str, list[Row]]] = {}
    for row in rows:
        found.setdefault((row["data"], row["classes"]), {}).setdefault(row["method"], []).append(row)
    for methods in found.values():
        if two := [methods.pop(name) for name in FEDADAM if name in methods]:
            methods["FedAdam"] = max(two, key=lambda own: fmean(row["adapted"] for row in own))
    order = list(dict.fromkeys(row["data"] for row in rows))
    return {
        place: found[place] for place in sorted(found, key=lambda place: (order.index(place[0]), place[1]))
    }


def table(rows: Sequence[Row], figure: str) -> str:
    """Print a figure of every method in every federation; of several seeds mean, deviation and how many they are."""
    found = federations(rows)
    lines = ["| | " + " | ".join(f"{data}, {classes} classes" for data, classes in found) + " |"]
    lines.append("| --- " * (1 + len(found)) + "|")
    for method in dict.fromkeys([*DRAWN, *(method for own in found.values() for method in own)]):
        cells = [[row[figure] for row in own.get(method, [])] for own in found.values()]
        if any(cells):
            lines.append(f"| {method} | " + " | ".join(map(_mean, cells)) + " |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    several = f" ± {stdev(values):.2f} ({len(values)})" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{several}"


def picture(rows: Sequence[Row], path: Path) -> None:
    """Draw everyone's accuracy, one panel per federation."""
    found = federations(rows)
    with drawing(path, len(found), columns=COLUMNS) as (_, axes):
        for number, (axis, ((data, classes), methods)) in enumerate(zip(axes, found.items(), strict=True)):
            _dots(axis, {name: own for name, own in methods.items() if name in DRAWN})
            axis.set(title=f"{data}, {classes} classes per client")
            axis.set(xlabel="everyone, %: ● adapted, ○ as they are")
            axis.set_yticks(range(len(DRAWN)), DRAWN if number % COLUMNS == 0 else [""] * len(DRAWN))


def _dots(axis: Axes, methods: dict[str, list[Row]]) -> None:
    """Draw a dot and a ring per method, and how far seeds lie apart; rings far to the left are pointed at."""
    found = {
        name: [[row[figure] for row in own] for figure in ("adapted", "everyone")]
        for name, own in methods.items()
    }
    left = min(fmean(adapted) for adapted, _ in found.values())
    right = max(figure for both in found.values() for figures in both for figure in figures)
    margin = 0.08 * (right - left) or 1.0
    for name, (adapted, everyone) in found.items():
        colour, place = "C0" if name.startswith("PFLEGO") else "C7", DRAWN.index(name)
        axis.plot([min(adapted), max(adapted)], [place, place], color=colour)
        axis.plot(fmean(adapted), place, "o", color=colour)
        ring, mark = max((fmean(everyone), "o"), (left - margin, "<"))
        axis.plot(ring, place, mark, color=colour, markerfacecolor="none", clip_on=False)
    axis.set(xlim=(left - margin, right + margin), ylim=(len(DRAWN) - 0.5, -0.5))


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
    parser.add_argument("--picture", type=Path, help="draw what the seeds came to into this file")
    parser.add_argument("--out", type=Path, default=Path("runs/equal-rounds.json"))
    given = parser.parse_args()
    found: ResultsFile[Row] = ResultsFile(given.out, "data", "classes", "method", "seed", "rounds")
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
            for method in filter(None, given.methods.split(";")):
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
    shown = [row for row in found if row["seed"] in seeds]
    for figure in FIGURES:
        print(f"{figure}\n{table(shown, figure)}")
    if given.picture:
        picture(shown, given.picture)


if __name__ == "__main__":
    main()
