"""pflego run: train one federation with one method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pflego.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from pflego.run import Run


@options.spelled_out
def run(
    settings: options.SettingsFile = None,
    preset: options.Preset = None,
    data: options.Data = None,
    of_data: options.Bundle = None,
    data_seed: options.DataSeed = None,
    of_method: options.Bundle = None,
    participation: options.Participation = None,
    rounds: options.Rounds = None,
    dropout: options.Dropout = None,
    deadline: options.Deadline = None,
    samples_per_second: options.SamplesPerSecond = None,
    speed_spread: options.SpeedSpread = None,
    missing: options.Missing = None,
    seed: options.Seed = None,
    evaluate_every: options.EvaluateEvery = None,
    batch_size: options.BatchSize = None,
    memory: options.Memory = None,
    device: options.Device = None,
    engine: options.Engine = None,
    out: options.Out = None,
    checkpoint_every: options.CheckpointEvery = None,
    states: options.StatesPlace = None,
    track: options.Track = None,
    resume: options.Resume = False,
) -> None:
    """Train one federation with one method.

    [bold]pflego run[/bold] trains PFLEGO on handwritten digits, 20 clients with 2 classes each.

    [bold]pflego run --data digits --clients 20 --participation 5 --steps 50 --out runs/a[/bold] says more of it.

    [bold]pflego run --resume --out runs/a[/bold] goes on where an interrupted run stopped.

    The folder holds settings.toml (itself a settings file), metrics.jsonl, the checkpoint and report.html.
    """
    given = options.given({k: v for k, v in locals().items() if k not in {"settings", "preset", "resume"}})

    from rich.console import Console
    from rich.markup import escape

    from pflego.experiment import Experiment, read_settings
    from pflego.peers import check_alone, joined

    base = options.beneath(settings, preset, given)
    if resume and (record := options.folder_of({**base, **given}) / "settings.toml").exists():
        base = {**read_settings(record), **base}
    named = {**base, **given}
    if not (together := named.get("engine") == "distributed"):
        check_alone("with --engine distributed they train together")
    with joined(together) as peers:
        with peers.one_first():
            experiment = Experiment.build(named)
        free = peers.gather(str(_free_folder(experiment.settings)))[0]
        folder = Path(str(experiment.settings.setdefault("out", free)))
        try:
            result = experiment.train(resume=resume, progress=True)
        except KeyboardInterrupt:
            if peers.first:
                typer.echo(f"\nstopped; go on with: pflego run --resume --out {folder}", err=True)
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


def summary(run: Run) -> Table:
    """A run in a few lines."""
    from rich.table import Table

    from pflego.summary import Summary

    came_to = Summary.of(run)
    metric = came_to.metric
    table = Table(
        title=f"{came_to.algorithm}, {came_to.clients} clients, {came_to.rounds} rounds",
        show_header=False,
        title_justify="left",
    )
    table.add_row(f"{metric}, all clients", percent(came_to.everyone, metric))
    table.add_row(f"{metric}, worst tenth of clients", percent(came_to.worst_tenth, metric))
    table.add_row(
        "backbone passes a round, a client",
        f"{came_to.forward_passes} forward, {came_to.backward_passes} backward",
    )
    table.add_row(
        "sent in all", f"{came_to.bytes_up / 1e6:.1f} MB up, {came_to.bytes_down / 1e6:.1f} MB down"
    )
    table.add_row("time of clients and server", f"{came_to.seconds:.1f} s")
    return table


def percent(figure: float | None, metric: str) -> str:
    """A figure as people read it."""
    if figure is None:
        return "no test data"
    return f"{100 * figure:.2f} %" if metric == "accuracy" else f"{figure:.4f}"


def _free_folder(settings: dict[str, object]) -> Path:
    """runs/<data>-<algorithm>, or the first of -2, -3, ... that is free."""
    name = f"{Path(str(settings['data'])).stem}-{settings['algorithm']}"
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
