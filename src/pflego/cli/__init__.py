"""The command line: one file per command. torch is imported only where a command needs it."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from pflego.cli import data, deploy, paper, theory
from pflego.cli.advise import advise
from pflego.cli.attack import attack
from pflego.cli.compare import compare
from pflego.cli.evaluate import evaluate
from pflego.cli.export import export
from pflego.cli.join import join
from pflego.cli.kit import kit
from pflego.cli.options import taking
from pflego.cli.predict import predict
from pflego.cli.report import report
from pflego.cli.run import run
from pflego.cli.terminal import one_line
from pflego.cli.tune import tune
from pflego.cli.whole import check
from pflego.errors import UserError


class Commands(TyperGroup):
    """All commands; one that is interrupted says so, and ends with the status that shells give it."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("\npflego: stopped", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    help="Personalised federated learning: a backbone for everybody, a head for each client.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_EVERYTHING = ("data", "model", "method", "run")
_ONE_PROCESS = ["engine"]
app.command(cls=taking(*_EVERYTHING))(run)
app.command(cls=taking(*_EVERYTHING, without=["algorithm", "out", "track", *_ONE_PROCESS]))(compare)
app.command(cls=taking(*_EVERYTHING, without=["aggregation", "liars", "out", "track", *_ONE_PROCESS]))(attack)
app.command(cls=taking("data", "model", only=["steps", "participation", "seed", "device"]))(advise)
app.command(cls=taking(*_EVERYTHING, without=["out", "track", "states", "checkpoint_every", *_ONE_PROCESS]))(
    tune
)
app.command()(report)
app.command()(evaluate)
app.command()(predict)
app.command()(export)
app.command()(join)
app.command()(kit)
app.command()(check)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
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
    """Run the command line. What the user, or the machine, got wrong is one line and exit status 2."""
    warnings.showwarning = lambda message, *_: _say(str(message))
    try:
        code = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "pflego"
        _say(f"{error.format_message()} See: {command} --help")
        sys.exit(error.exit_code)
    except click.Abort:
        _say("stopped")
        sys.exit(130)
    except UserError as error:
        if _speaks(error):
            _say(str(error))
        sys.exit(2)
    except OSError as error:  # a disk that is full or read-only, a folder that has gone, no right to open it
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}")
        sys.exit(2)
    except KeyboardInterrupt:  # before there was a command
        _say("stopped")
        sys.exit(130)
    except MemoryError as error:
        _say(f"there is not enough memory: {error or 'take fewer samples, or smaller ones'}")
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str) -> None:
    print(f"pflego: {one_line(message)}", file=sys.stderr)


def _speaks(error: UserError) -> bool:
    """Tell whether it is for this process to say it: of several that torchrun started, one does."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return True
    from pflego.engines.peers import speaks

    return speaks(error)
