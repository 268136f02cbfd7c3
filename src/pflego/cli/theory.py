"""pflego theory: the paper's propositions, measured, and what privacy costs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pflego.cli import options

app = typer.Typer(
    help="What the theory says: of convergence, measured, and of privacy.", no_args_is_help=True
)


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


@app.command()
def privacy(
    clients: Annotated[int, typer.Option(help="How many clients there are.", min=2)],
    epsilon: Annotated[float, typer.Option(help="The privacy that may be spent in all.")],
    delta: Annotated[
        float | None,
        typer.Option(
            help="The probability with which the promise may fail. \\[a tenth of one in all clients]"
        ),
    ] = None,
    rounds: Annotated[str, typer.Option(help="Numbers of rounds to plan for.")] = "50,100,200,400",
    participation: Annotated[
        str, typer.Option(help="A client's chances to take part in a round.")
    ] = "0.01,0.02,0.05,0.1,0.2,0.5,1",
    fixed: Annotated[
        bool, typer.Option("--fixed", help="Exactly that share of the clients in every round.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="The picture to draw; figures go beside it as JSON.", dir_okay=False)
    ] = Path("theory-privacy.png"),
) -> None:
    """Plan differential privacy: the noise that a budget asks for, by rounds and participation.

    [bold]pflego theory privacy --clients 1000 --epsilon 2[/bold] says which noise multiplier keeps so many rounds
    within epsilon, and how much noise is then in a step, in units of the clip: the less, the better it learns.
    """
    from rich.table import Table

    from pflego.cli.console import Console
    from pflego.errors import SettingError
    from pflego.exchange.budget import advised, options
    from pflego.files import make_folder, write_atomically
    from pflego.report.plots import Curve, Panel, draw

    try:
        numbers = sorted({int(word) for word in rounds.split(",")})
        chances = sorted({float(word) for word in participation.split(",")})
    except ValueError:
        raise SettingError(
            "--rounds are whole numbers, 50,100, and --participation chances, 0.1,0.2"
        ) from None
    delta = 0.1 / clients if delta is None else delta
    if numbers[0] < 1 or not 0 < chances[0] <= chances[-1] <= 1 or not 0 < delta < 1 or epsilon <= 0:
        raise SettingError(
            "--rounds and --epsilon are above 0, --participation above 0 and at most 1, --delta between 0 and 1"
        )
    make_folder(out.parent)
    found = options(clients, epsilon=epsilon, delta=delta, rounds=numbers, chances=chances, fixed=fixed)
    table = Table("participants", *(f"{number} rounds" for number in numbers))
    for chance in chances:
        own = [one for one in found if one.chance == chance]
        table.add_row(f"{own[0].participants:g}", *(f"{one.noise:.3g} ({one.in_step:.3g})" for one in own))
    lines = {number: [one for one in found if one.rounds == number] for number in numbers}
    size = [one.participants for one in lines[numbers[0]]]
    panels = [
        Panel(
            "noise multiplier",
            [Curve(f"{number} rounds", size, [one.noise for one in own]) for number, own in lines.items()],
            "participants in a round",
            "z",
            "log",
        ),
        Panel(
            "noise in a step, over the clip",
            [Curve(f"{number} rounds", size, [one.in_step for one in own]) for number, own in lines.items()],
            "participants in a round",
            "z / participants",
            "log",
        ),
    ]
    draw(panels, out)
    figures = {"clients": clients, "epsilon": epsilon, "delta": delta, "fixed": fixed}
    content = json.dumps({**figures, "options": [asdict(one) for one in found]}, indent=1)
    write_atomically(out.with_suffix(".json"), content.encode())
    best = advised(found)
    taking_part = f"{best.participants:g}" if fixed else f"binomial:{best.chance:g}"
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{clients:,} clients, epsilon {epsilon:g} at delta {delta:g}: noise multipliers, and in brackets the "
        "deviation of the noise in a step, over the clip"
    )
    console.print(table)
    console.print(
        f"for instance: pflego run --participation {taking_part} --rounds {best.rounds} --weighting equal "
        f"--privacy clip=1,noise={1.0005 * best.noise:.4g},delta={delta:g},max_epsilon={epsilon:g}",
        markup=False,
    )
    console.print(f"drawn in {out}", markup=False)
