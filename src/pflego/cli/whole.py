"""pflego check: whether a run's folder, or an exported model, is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflego.cli.terminal import say
from pflego.errors import FolderError, UserError


def check(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A run, or a model from pflego export.", show_default=False),
    ],
) -> None:
    """Check whether a folder is whole: nothing missing, damaged, exchanged or edited. Nothing is changed or run.

    [bold]pflego check runs/a[/bold] looks at settings, checkpoint, states and history. Exit status 2 if anything is
    wrong. Of a run whose history alone is damaged, weights and heads can still be used.
    """
    from rich.markup import escape
    from rich.table import Table

    from pflego.after.export import check_exported, is_exported
    from pflego.cli.console import Console
    from pflego.runs.folder import RunFolder

    run = RunFolder(folder)
    if is_exported(folder):
        findings = check_exported(folder)
    elif run.exists:
        findings = run.check()
    else:
        raise FolderError(f"{folder} holds neither a run nor an exported model")
    table = Table(show_header=False)
    for part, problem in findings.items():
        table.add_row(part, "[green]whole[/green]" if problem is None else f"[red]{escape(problem)}[/red]")
    Console().print(table)
    if kept := run.kept():
        say(f"checkpoints to go back to: rounds {', '.join(map(str, kept))}")
    if wrong := [part for part, problem in findings.items() if problem is not None]:
        raise UserError(f"{folder} is not whole: {', '.join(wrong)}")
