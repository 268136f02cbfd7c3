"""pflego run: train one federation with one method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import options, whose
from pflego.cli.terminal import say
from pflego.errors import SettingError

if TYPE_CHECKING:
    from rich.table import Table

    from pflego.runs.run import Run
    from pflego.settings.experiment import Experiment


_NAMED = 5  # clients that a summary names


def run(
    context: typer.Context,
    settings: options.SettingsFile = None,
    preset: options.Preset = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, with its own settings.")
    ] = False,
    back_to: Annotated[
        int | None,
        typer.Option(help="With --resume: the round to go back to first, one that was kept (--keep)."),
    ] = None,
    trust: whose.Trust = False,
) -> None:
    """Train one federation with one method.

    [bold]pflego run[/bold] trains PFLEGO on handwritten digits, 20 clients with 2 classes each.

    [bold]pflego run --data digits --clients 20 --participation 5 --steps 50 --out runs/a[/bold] says more of it.

    [bold]pflego run --resume --out runs/a[/bold] goes on where an interrupted run stopped.

    The folder holds settings.toml (itself a settings file), metrics.jsonl, the checkpoint and report.html.
    """
    given = options.given(context)

    from rich.markup import escape

    from pflego.cli.console import Console
    from pflego.declaration import opening
    from pflego.engines.peers import check_alone, joined
    from pflego.settings.experiment import Experiment
    from pflego.settings.tables import read_settings

    base = options.beneath(settings, preset, given)
    if resume and (record := options.folder_of({**base, **given}) / "settings.toml").exists():
        base = {**read_settings(record), **base}
    named = {**base, **given}
    if back_to is not None:
        _go_back(named, back_to, resume=resume)
    if not (together := named.get("engine") == "distributed"):
        check_alone("with --engine distributed they train together")
    with joined(together) as peers, opening(trust=trust or not resume):
        with peers.one_first():
            experiment = Experiment.build(named)
        free = peers.gather(str(_free_folder(experiment)))[0]
        folder = Path(str(experiment.settings.tables["run"].setdefault("out", free)))
        try:
            result = experiment.train(resume=resume, progress=True)
        except KeyboardInterrupt:
            if peers.first:
                say(f"\nstopped; go on with: pflego run --resume --out {folder}", err=True)
            raise typer.Exit(130) from None
    if not peers.first:
        return
    console = Console()
    console.print(summary(result))
    console.print(
        f"results in [bold]{escape(str(folder))}[/bold]{_report(result, folder)}",
        highlight=False,
        soft_wrap=True,
    )
    if result.history and not result.learned:
        raise typer.Exit(1)


def _go_back(settings: dict[str, object], number: int, *, resume: bool) -> None:
    """Make an earlier checkpoint the one to go on from."""
    from pflego.runs.folder import RunFolder

    if not resume:
        raise SettingError("--back-to goes with --resume: it is an earlier round of a run that is there")
    RunFolder(options.folder_of(settings)).go_back(number)


def summary(run: Run) -> Table:
    """Tabulate a run in a few lines."""
    from rich.table import Table

    from pflego.runs.summary import Summary

    came_to = Summary.of(run)
    metric = came_to.metric
    table = Table(
        title=f"{came_to.algorithm}, {came_to.clients} clients, {came_to.rounds} rounds",
        show_header=False,
        title_justify="left",
    )
    table.add_row(f"{metric}, all clients", percent(came_to.everyone, metric))
    if came_to.ceiling is not None:
        table.add_row(
            "at most, as outputs are numbered anew on every client", percent(came_to.ceiling, metric)
        )
    if came_to.everyone_adapted is not None:
        table.add_row(f"{metric}, all clients, after local steps", percent(came_to.everyone_adapted, metric))
    table.add_row(f"{metric}, mean over clients", percent(came_to.client_mean, metric))
    table.add_row(f"{metric}, worst tenth of clients", percent(came_to.worst_tenth, metric))
    table.add_row(f"{metric}, spread over clients", percent(came_to.spread, metric))
    table.add_row(
        "backbone passes per round and client",
        f"{came_to.forward_passes:.4g} forward, {came_to.backward_passes:.4g} backward",
    )
    table.add_row(
        "sent in all", f"{came_to.bytes_up / 1e6:.1f} MB up, {came_to.bytes_down / 1e6:.1f} MB down"
    )
    if came_to.privacy is not None:
        table.add_row("privacy of what is shared", str(came_to.privacy))
    table.add_row("time of clients and server", f"{came_to.seconds:.1f} s")
    if came_to.waited is not None:
        table.add_row("the server would have waited for replies", f"{came_to.waited:.1f} s")
    if came_to.never_heard:
        names = ", ".join(map(str, came_to.never_heard[:_NAMED]))
        others = f" and {len(came_to.never_heard) - _NAMED} more" if len(came_to.never_heard) > _NAMED else ""
        table.add_row("asked and never heard", f"{names}{others}: {100 * came_to.unheard:.1f} % of the loss")
    if run.rejected:
        often = [f"{client} ({times})" for client, times in run.rejected.most_common(_NAMED)]
        others = f" and {len(run.rejected) - _NAMED} more" if len(run.rejected) > _NAMED else ""
        table.add_row("clients whose updates were not finite (how often)", ", ".join(often) + others)
    return table


def percent(figure: float | None, metric: str) -> str:
    """Format a figure as people read it."""
    if figure is None:
        return "no test data"
    return f"{100 * figure:.2f} %" if metric == "accuracy" else f"{figure:.4f}"


def _free_folder(experiment: Experiment) -> Path:
    """Give runs/<data>-<algorithm>, or the first of -2, -3, ... that is free."""
    name = f"{Path(str(experiment.settings.value('data'))).stem}-{experiment.algorithm.name}"
    number, folder = 1, Path("runs") / name
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def _report(run: Run, folder: Path) -> str:
    """Write the report, where its library is installed, and say so."""
    from rich.markup import escape

    try:
        return f", to look at: [bold]{escape(str(run.report(folder / 'report.html')))}[/bold]"
    except ModuleNotFoundError as error:
        return f" ({error})"
