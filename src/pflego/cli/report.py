"""pflego report: a page to look at, of one run or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflego.cli import whose
from pflego.cli.terminal import say
from pflego.errors import UserError


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, finished or not.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page. \\[report.html in the run's folder; of several runs: compare.html]"),
    ] = None,
    alone: Annotated[
        bool | None,
        typer.Option(
            "--alone/--no-alone",
            help="Try how every client would do alone, which takes about as long as the run. \\[if that is quick]",
        ),
    ] = None,
    trust: whose.Trust = False,
) -> None:
    """Write a page to look at: curves, every client, who gains, what it cost. One HTML file that opens offline.

    [bold]pflego report runs/a[/bold]

    [bold]pflego report runs/pflego runs/fedavg --out compare.html[/bold] puts runs side by side.
    """
    from pflego.report import write_report
    from pflego.settings.open_run import open_run

    path = out or (runs[0] / "report.html" if len(runs) == 1 else Path("compare.html"))
    try:
        write_report([open_run(folder, trust=trust) for folder in runs], path, alone=alone)
    except ModuleNotFoundError as error:
        raise UserError(str(error)) from error
    say(f"to look at: {path}")
