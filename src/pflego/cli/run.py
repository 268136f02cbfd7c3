"""pflego run: train one federation with one method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from pflego.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from pflego.run import Run

_DATA = "Data"
_METHOD = "Method"
_RUN = "Run"


def run(
    settings: Annotated[
        Path | None,
        typer.Argument(
            help="A TOML file of the same names as the options; options given here take precedence."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set (digits, diabetes, mnist, ...) or .npz file. \\[digits]", rich_help_panel=_DATA
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="How many clients. \\[20]", rich_help_panel=_DATA)
    ] = None,
    classes_per_client: Annotated[
        int | None,
        typer.Option(
            help="Classes each client holds: fewer make clients more different. \\[2]", rich_help_panel=_DATA
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder searched first for <name>.npz. \\[$PFLEGO_DATA]", rich_help_panel=_DATA),
    ] = None,
    data_seed: Annotated[
        int | None, typer.Option(help="Seed of the partition. \\[--seed]", rich_help_panel=_DATA)
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Method: pflego, local. \\[pflego]", rich_help_panel=_METHOD)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Backbone: mlp. \\[mlp]", rich_help_panel=_METHOD)] = None,
    model_seed: Annotated[
        int | None, typer.Option(help="Seed of the first weights. \\[--seed]", rich_help_panel=_METHOD)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="tau, local steps a round. \\[50]", rich_help_panel=_METHOD)
    ] = None,
    client_lr: Annotated[
        float | None, typer.Option(help="beta, rate of the local steps. \\[0.1]", rich_help_panel=_METHOD)
    ] = None,
    server_lr: Annotated[
        float | None, typer.Option(help="rho, rate of the joint step. \\[0.003]", rich_help_panel=_METHOD)
    ] = None,
    server_optimizer: Annotated[
        str | None,
        typer.Option(help="sgd, adam or any other of torch.optim. \\[adam]", rich_help_panel=_METHOD),
    ] = None,
    head_step: Annotated[
        str | None,
        typer.Option(
            help="The head's last step: paper, or exact (weighted by alpha_i).", rich_help_panel=_METHOD
        ),
    ] = None,
    head_init: Annotated[
        str | None, typer.Option(help="How heads start: zeros or uniform. \\[zeros]", rich_help_panel=_METHOD)
    ] = None,
    participation: Annotated[
        str | None,
        typer.Option(
            help="Who takes part in a round: a number, everyone, binomial:0.2 or between:4-28. \\[everyone]",
            rich_help_panel=_RUN,
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="T, rounds. \\[100]", rich_help_panel=_RUN)] = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides every random draw. \\[0]", rich_help_panel=_RUN)
    ] = None,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            help="Rounds between evaluations of everyone; 0: only at the end. \\[10]", rich_help_panel=_RUN
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, mps, ... \\[auto]", rich_help_panel=_RUN)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results. \\[runs/<data>-<algorithm>]", rich_help_panel=_RUN),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Rounds between checkpoints. \\[1]", rich_help_panel=_RUN)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the run in --out, with its own settings.", rich_help_panel=_RUN
        ),
    ] = False,
) -> None:
    """Train one federation with one method.

    [bold]pflego run[/bold] trains PFLEGO on handwritten digits, 20 clients with 2 classes each.

    [bold]pflego run --data digits --clients 20 --participation 5 --steps 50 --out runs/a[/bold] says more of it.

    [bold]pflego run --resume --out runs/a[/bold] goes on where an interrupted run stopped.

    The folder holds settings.toml (itself a settings file), metrics.jsonl, the checkpoint and report.html.
    """
    options = {name: value for name, value in locals().items() if name not in {"settings", "resume"}}
    given = {k: str(v) if isinstance(v, Path) else v for k, v in options.items() if v is not None}

    from rich.console import Console

    from pflego.experiment import Experiment, read_settings

    base = {} if settings is None else read_settings(settings)
    folder = given.get("out", base.get("out"))
    if resume:
        if folder is None:
            raise UserError("to resume a run, say where it is: --out FOLDER")
        if (record := Path(str(folder)) / "settings.toml").exists():
            base = {**read_settings(record), **base}
    experiment = Experiment.build({**base, **given})
    experiment.settings.setdefault("out", str(_free_folder(experiment.settings)))
    folder = Path(str(experiment.settings["out"]))
    try:
        result = experiment.train(resume=resume, progress=True)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; go on with: pflego run --resume --out {folder}", err=True)
        raise typer.Exit(130) from None
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

    from pflego.evaluation import worst_tenth

    task = run.federation.task
    figures = [score.figure(task) for score in run.scores()]
    last = run.history[-1]
    total = {key: sum(row[key] or 0 for row in run.history) for key in ("bytes_up", "bytes_down", "seconds")}
    table = Table(
        title=f"{run.algorithm.name}, {len(run.federation)} clients, {len(run.history)} rounds",
        show_header=False,
        title_justify="left",
    )
    table.add_row(f"{task.metric}, all clients", _percent(last[f"everyone_{task.metric}"], task.metric))
    worst = worst_tenth(figures, higher_is_better=task.higher_is_better)
    table.add_row(f"{task.metric}, worst tenth of clients", _percent(worst, task.metric))
    table.add_row(
        "backbone passes a round, a client",
        f"{last['forward_passes']} forward, {last['backward_passes']} backward",
    )
    table.add_row(
        "sent in all", f"{total['bytes_up'] / 1e6:.1f} MB up, {total['bytes_down'] / 1e6:.1f} MB down"
    )
    table.add_row("time of clients and server", f"{total['seconds']:.1f} s")
    return table


def _percent(figure: float | None, metric: str) -> str:
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
    try:
        return f", to look at: [bold]{escape(str(run.report(folder / 'report.html')))}[/bold]"
    except ModuleNotFoundError as error:
        return f" ({error})"
