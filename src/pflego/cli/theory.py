"""pflego theory: the paper's propositions, measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pflego.cli import options

app = typer.Typer(help="What the paper's theory says, measured.", no_args_is_help=True)


@app.callback()
def _theory() -> None:
    pass


_OF_THE_METHOD = [
    "steps",
    "head_step",
    "client_lr",
    "head_init",
    "head_optimizer",
    "common_head",
    "head_decay",
]


@app.command(cls=options.taking("data", only=["model", *_OF_THE_METHOD, "participation", "seed"]))
def rate(
    context: typer.Context,
    horizons: Annotated[str, typer.Option(help="The numbers of rounds T to train for.")] = "10,20,40,80,160",
    out: Annotated[
        Path, typer.Option(help="The picture to draw; figures go beside it as JSON.", dir_okay=False)
    ] = Path("theory-rate.png"),
) -> None:
    """Corollary 1: how the mean squared gradient norm falls with the number of rounds T.

    Trains once for each T with the corollary's server rate and draws the norms beside the corollary's right-hand side,
    with the smoothness constant L and the longest gradient G as measured.
    """
    given = options.given(context)

    from rich.table import Table

    from pflego.algorithms.pflego import PFLEGO
    from pflego.cli.console import Console
    from pflego.errors import SettingError
    from pflego.files import make_folder, write_atomically
    from pflego.report.plots import Curve, Panel, draw
    from pflego.settings.experiment import Experiment
    from pflego.training.convergence import Point, measure

    try:
        rounds = sorted({int(word) for word in horizons.split(",")})
    except ValueError:
        raise SettingError(f"cannot read --horizons {horizons!r}: give whole numbers, 10,20,40") from None
    if rounds[0] < 1:
        raise SettingError(f"--horizons must be above 0, not {rounds[0]}")
    make_folder(out.parent)
    experiment = Experiment.build({"head_step": "exact", **given})
    assert isinstance(experiment.algorithm, PFLEGO)
    notes = Console(stderr=True)

    def tell(point: Point) -> None:
        notes.print(f"T = {point.rounds}: {point.squared_gradient:.3g}", highlight=False)

    points = measure(
        experiment.federation,
        experiment.model,
        experiment.algorithm,
        horizons=rounds,
        participation=experiment.participation,
        seed=experiment.seed,
        tell=tell,
    )
    table = Table("T", "server rate", "mean squared gradient", "at most, by the corollary", "G")
    for point in points:
        table.add_row(
            str(point.rounds),
            f"{point.server_lr:.3g}",
            f"{point.squared_gradient:.3g}",
            f"{point.bound:.3g}",
            f"{point.largest_gradient:.3g}",
        )
    write_atomically(out.with_suffix(".json"), json.dumps([asdict(p) for p in points], indent=2).encode())
    through_first = [points[0].squared_gradient * (rounds[0] / t) ** 0.5 for t in rounds]
    curves = [
        Curve("measured", rounds, [point.squared_gradient for point in points]),
        Curve("the corollary's bound", rounds, [point.bound for point in points], "--"),
        Curve("c / sqrt(T) through the first", rounds, through_first, ":"),
    ]
    title = f"{experiment.settings.value('data')}, {len(experiment.federation)} clients"
    draw([Panel(title, curves, "T, rounds", "mean squared gradient norm", "log")], out)
    Console().print(table)
    last = max(point.last_smoothness for point in points)
    words = (
        "so its assumption held there"
        if last <= points[0].smoothness
        else "where its assumption does not hold"
    )
    Console().print(
        f"L = {points[0].smoothness:.3g} at the start, at most {last:.3g} where training ended, {words}; "
        f"L(theta_0) = {points[0].first_loss:.3g}",
        highlight=False,
    )
    Console().print(f"drawn in {out}", highlight=False, markup=False)
