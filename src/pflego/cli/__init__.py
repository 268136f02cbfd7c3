"""The command line: a file a command. torch is imported only where a command needs it."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from pflego.cli import data, paper, theory
from pflego.cli.compare import compare
from pflego.cli.run import run
from pflego.errors import UserError

app = typer.Typer(
    help="Personalised federated learning: a backbone for everybody, a head for each client.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(run)
app.command()(compare)
app.add_typer(data.app, name="data")
app.add_typer(paper.app, name="paper")
app.add_typer(theory.app, name="theory")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pflego {version('pflego')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. What the user got wrong is one line and exit status 2."""
    warnings.showwarning = lambda message, *_: print(f"pflego: {message}", file=sys.stderr)
    try:
        app()
    except UserError as error:
        print(f"pflego: {error}", file=sys.stderr)
        sys.exit(2)
