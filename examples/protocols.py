"""Experiments of others: how far does each method come in a protocol, round by round, beside the published figures?

    PFLEGO_DATA=... OMP_NUM_THREADS=1 python examples/protocols.py pfllib-fashion-dirichlet \
        --methods pflego+common_head=true,local --rounds 20 --out docs/protocols.json
    python examples/protocols.py pfllib-fashion-2 --methods pflego,fedavg --data digits --model mlp --clients 5 \
        --rounds 4

Protocols are those of `pflego compare --protocol`; methods are spelled as there and take the protocol's rates, PFLEGO
its own. Keeps the curves as JSON and prints the tables of docs/protocols.md: everyone / everyone adapted, in per cent.
What the file holds already is not trained again, and an interrupted run goes on in its folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pflego.comparison.compare import Entry, compare
from pflego.comparison.protocols import find_protocol
from pflego.comparison.variants import choose
from results_file import ResultsFile

# What can be other than in the protocol, and what of it is left out where a column of the data names the clients.
OF_DATA = {"data": str, "column": str, "partition": str, "model": str, "clients": int}
DRAWN = ("partition", "alpha", "classes_per_client", "clients")


def row_of(entry: Entry, protocol: str, differs: str) -> dict[str, Any]:
    """Give what is kept of a run: per cent by round, and the passes of a participant."""
    curves = {
        name: [[after, round(100 * value, 2)] for after, value in entry.curves[name]]
        for name in ("participants", "everyone", "everyone_adapted")
    }
    passes = [entry.summary.forward_passes, entry.summary.backward_passes]
    return {
        "protocol": protocol,
        "differs": differs,
        "method": entry.name,
        "seed": entry.seed,
        "rounds": entry.summary.rounds,
        "passes_a_round": passes,
        **curves,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Print everyone / everyone adapted after the rounds in which somebody was asked."""
    looks = sorted({after for row in rows for after, _ in row["everyone_adapted"]})
    lines = ["| round | " + " | ".join(map(str, looks)) + " | published |", "| --- " * (2 + len(looks)) + "|"]
    for row in rows:
        plain, adapted = dict(row["everyone"]), dict(row["everyone_adapted"])
        figures = [f"{plain[t]:.2f} / {adapted[t]:.2f}" if t in adapted else "–" for t in looks]
        published = find_protocol(row["protocol"]).published.get(row["method"])
        lines.append(f"| {row['method']} | " + " | ".join([*figures, f"{published or '–'}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train what is not known yet; keep and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("protocol")
    parser.add_argument("--methods", default="pflego+common_head=true", help="or variants, after commas")
    parser.add_argument("--rounds", type=int, help="if not given, the protocol's")
    parser.add_argument("--every", type=int, default=5, help="rounds between two looks at everyone")
    parser.add_argument("--seed", type=int, default=0)
    for name, kind in OF_DATA.items():
        parser.add_argument(f"--{name}", type=kind, help="if not given, the protocol's")
    parser.add_argument("--folder", type=Path, default=Path("runs/protocols"), help="of the runs")
    parser.add_argument("--out", type=Path, default=Path("runs/protocols.json"))
    given = parser.parse_args()
    other = {name: value for name in OF_DATA if (value := getattr(given, name)) is not None}
    differs = ",".join(f"{name}={Path(str(value)).stem}" for name, value in other.items())
    settings = {**find_protocol(given.protocol).settings, **other, "evaluate_every": given.every}
    if given.column:
        settings = {name: value for name, value in settings.items() if name not in DRAWN}
    rounds = settings["rounds"] = given.rounds or settings["rounds"]
    folder = given.folder / "-".join([given.protocol, *filter(None, [differs]), str(rounds)])
    found: ResultsFile[dict[str, Any]] = ResultsFile(
        given.out, "protocol", "differs", "method", "seed", "rounds"
    )
    for method in choose(given.methods):
        if (given.protocol, differs, method, given.seed, rounds) in found:
            continue
        (entry,) = compare(settings, [method], [given.seed], folder, rates="given", progress=False)
        print("trained", found.add(row_of(entry, given.protocol, differs))["method"], flush=True)
    print(table([row for row in found if (row["protocol"], row["differs"]) == (given.protocol, differs)]))


if __name__ == "__main__":
    main()
