"""pflego tune: search for the best hyperparameters, without a look at the test data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import options
from pflego.cli.terminal import say

if TYPE_CHECKING:
    from rich.table import Table

    from pflego.report.words import Metric
    from pflego.tuning import Attempt, Tuning
    from pflego.tuning.space import Value

_SEARCH = "Search"
_SHOWN = 10  # trials in the table


def tune(
    context: typer.Context,
    settings: options.SettingsFile = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="What to try: server_lr=1e-4:1e-1:log (a range), steps=5:100 (whole numbers), client_lr=auto,0.01,0.1 "
            "(a list). Any number of times. \\[the method's rates, a hundredfold to each side; beside auto 0.001 to 3]",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="How many there are to be in all.", rich_help_panel=_SEARCH)
    ] = 20,
    hold_out: Annotated[
        float, typer.Option(help="Share of each client's training data to judge by.", rich_help_panel=_SEARCH)
    ] = 0.2,
    out: Annotated[
        Path, typer.Option(help="Folder for the search and its results.", rich_help_panel=_SEARCH)
    ] = Path("runs/tuning"),
    preset: options.Preset = None,
) -> None:
    """Search for the best hyperparameters, without a look at the test data.

    [bold]pflego tune --data digits --participation 5 --rounds 50[/bold] looks for PFLEGO's rates.

    [bold]pflego tune --algorithm fedprox --over client_lr=1e-3:1e-1:log --over mu=0.01,0.1,1 --trials 30[/bold] says
    what to try.

    A trial trains on most of each client's training data and is judged by the rest. One that does worse than most did
    at the same round is given up. Interrupted, the same command goes on where it stopped. The folder holds best.toml
    (settings for [bold]pflego run[/bold]), trials.csv, trials.json and tuning.png.
    """
    given = options.given(context)

    from pflego.cli.console import Console
    from pflego.tuning import read
    from pflego.tuning import tune as search

    base = options.beneath(settings, preset, given)
    spaces = None if over is None else dict(read(text) for text in over)

    def told(attempt: Attempt, metric: Metric) -> None:
        say(f"trial {attempt.number} of {trials}: {_words(attempt, metric)}", err=True)

    try:
        tuning = search({**base, **given}, spaces, out=out, trials=trials, hold_out=hold_out, told=told)
    except KeyboardInterrupt:
        say("\nstopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    console = Console()
    console.print(table(tuning))
    if tuning.mattered:
        shares = [f"{name} {100 * share:.0f} %" for name, share in tuning.mattered.items()]
        say(f"what mattered: {', '.join(shares)}")
    say(f"results in {out}{_picture(tuning, out)}")
    say(f"train with the best: pflego run {out / 'best.toml'}")


def table(tuning: Tuning) -> Table:
    """Tabulate the best trials, one line per trial."""
    from rich.table import Table

    from pflego.report.words import count

    early = sum(attempt.ended != "finished" for attempt in tuning.attempts)
    shown = Table(
        title=f"{count(len(tuning.attempts), 'trial')}, {early} of them ended early", title_justify="left"
    )
    for heading in ("trial", f"validation {tuning.metric.name}", *tuning.spaces):
        shown.add_column(heading, justify="right")
    for attempt in tuning.ranked()[:_SHOWN]:
        if attempt.ended == "finished":
            figure = tuning.metric.text(attempt.figure, 2)
            values = [_value(attempt.values[name]) for name in tuning.spaces]
            style = "bold" if attempt == tuning.best else None
            shown.add_row(str(attempt.number), figure, *values, style=style)
    return shown


def _words(attempt: Attempt, metric: Metric) -> str:
    """Say what came of a trial, in one line."""
    tried = ", ".join(f"{name} {_value(value)}" for name, value in attempt.values.items())
    if attempt.ended == "finished":
        return f"{metric.text(attempt.figure, 2)} with {tried}"
    if attempt.ended == "refused":
        return f"refused, {attempt.reason}"
    seen = (
        f" after round {attempt.curve[-1][0]}, at {metric.text(attempt.figure, 2)}" if attempt.curve else ""
    )
    return f"{attempt.ended}{seen}, with {tried}"


def _value(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _picture(tuning: Tuning, folder: Path) -> str:
    """Draw it, where the library for it is installed, and say so."""
    from pflego.tuning.drawing import draw

    try:
        return f", to look at: {draw(tuning, folder / 'tuning.png')}"
    except ModuleNotFoundError as error:
        return f" ({error})"
