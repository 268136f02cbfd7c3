"""Speed, as ratios within one run: `make bench`, or `python -m benchmarks --quick`.

Prints a table and writes it as JSON. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.rows import ROWS, Row, fedavg_elsewhere


def main() -> None:
    """Measure, print, write."""
    names = {measure.__name__.replace("_", "-"): measure for measure in ROWS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions, and without other frameworks' environments"
    )
    parser.add_argument("--only", nargs="+", choices=names, help="some of the measurements")
    parser.add_argument("--out", type=Path, default=Path("benchmarks.json"), help="where to write the JSON")
    arguments = parser.parse_args()
    chosen = [names[name] for name in arguments.only] if arguments.only else ROWS
    if arguments.quick and not arguments.only:
        chosen = [measure for measure in chosen if measure is not fedavg_elsewhere]
    console = Console()
    rows: list[Row] = []
    for measure in chosen:
        with console.status((measure.__doc__ or "").splitlines()[0]):
            rows += measure(1 if arguments.quick else 9)
            _write(arguments.out, rows, quick=arguments.quick)  # what is measured stays, whatever comes after
    console.print(table(rows))


def _write(path: Path, rows: list[Row], *, quick: bool) -> None:
    machine = {
        "cores": torch.get_num_threads(),
        "processor": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pflego": version("pflego"),
    }
    record = {"quick": quick, "machine": machine, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(record, indent=2) + "\n")


def table(rows: list[Row]) -> Table:
    """What was measured beside what should be."""
    marks = {True: "[green]reached[/]", False: "[red]missed[/]", None: "[yellow]not measured[/]"}
    result = Table(title=f"{torch.get_num_threads()} threads", title_justify="left")
    for heading, side in [("", "left"), ("measured", "right"), ("reach", "right"), ("", "left")]:
        result.add_column(heading, justify=side)  # type: ignore[arg-type]
    for row in rows:
        number = "–" if row.measured is None else f"{row.measured:.2f}"
        if row.low is not None and row.high is not None and row.pairs != 1:
            number += f" ({row.low:.2f} to {row.high:.2f})"
        result.add_row(row.name, number, row.reach, marks[row.reached] + (f" {row.note}" if row.note else ""))
    return result


if __name__ == "__main__":
    main()
