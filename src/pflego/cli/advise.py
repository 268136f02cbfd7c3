"""pflego advise: how much personalisation does a federation need?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import options
from pflego.cli.check import DataArgument

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from pflego.advice import Advice
    from pflego.advice.statistics import Interval


def advise(
    context: typer.Context,
    data: DataArgument,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of the contest. \\[as the budget allows, at most 20]")
    ] = None,
    look_at: Annotated[
        int | None,
        typer.Option(help="Clients that compete, drawn at random. \\[as the budget allows, at most 50]"),
    ] = None,
    splits: Annotated[int, typer.Option(help="How often a part of the data is held out, 2 or more.")] = 2,
    budget_seconds: Annotated[
        float, typer.Option(help="What the contest may take, reckoned for two modest cores.")
    ] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for advice.json, advice.png and start.toml.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON, and nothing else.")
    ] = False,
) -> None:
    """Say how different clients are, whether federating and personalising pay, and what to start with.

    [bold]pflego advise digits --clients 20 --classes-per-client 2[/bold]

    Learning alone, one model for everybody and heads of one's own compete for some rounds, on a part of each client's
    training data that is held out. Test data are not looked at. It says how sure it is.
    """
    given = {"data": data, **options.given(context)}
    import sys
    from json import dumps

    from pflego.advice import advise as ask
    from pflego.cli.console import Console
    from pflego.files import make_folder
    from pflego.settings.experiment import Experiment

    experiment = Experiment.build(given)
    if out is not None:
        make_folder(out)
    notes = Console(stderr=True)
    try:
        advice = ask(
            experiment.federation,
            experiment.model,
            steps=int(str(experiment.settings.value("steps"))),
            participation=experiment.participation if "participation" in given else None,
            rounds=rounds,
            look_at=look_at,
            splits=splits,
            budget_seconds=budget_seconds,
            seed=experiment.seed,
            device=str(experiment.settings.value("device")),
            tell=lambda words: notes.print(words, highlight=False, markup=False, soft_wrap=True),
        )
    except KeyboardInterrupt:
        typer.echo("\nstopped", err=True)
        raise typer.Exit(130) from None
    written = "" if out is None else _save(advice, out)
    if json:
        sys.stdout.write(dumps(advice.figures(), indent=1) + "\n")
        return
    console = Console()
    for part in parts(advice):
        console.print(part)
    console.print(
        "Start with:", advice.start.command, sep="\n", highlight=False, markup=False, soft_wrap=True
    )
    if written:
        console.print(written, highlight=False, markup=False, soft_wrap=True)


def _save(advice: Advice, out: Path) -> str:
    """Write everything, and say where; what it takes to draw may not be installed."""
    try:
        advice.save(out)
    except ModuleNotFoundError as error:
        return f"figures in {out / 'advice.json'} ({error})"
    return f"figures in {out / 'advice.json'}, drawn in {out / 'advice.png'}"


def parts(advice: Advice) -> list[RenderableType]:
    """Lay out the verdict in words, then the evidence."""
    from rich.panel import Panel
    from rich.text import Text

    words = Text(advice.start.verdict, style="bold")
    for heading, said in advice.paragraphs().items():
        words.append("\n\n").append(heading, style="bold").append(f" {said}", style="not bold")
    return [
        Panel(words, title="advice", title_align="left", padding=(1, 2)),
        _answers(advice),
        _losers(advice),
        _standings(advice),
        _differences(advice),
        _costs(advice),
    ]


def _answers(advice: Advice) -> Table:
    from pflego.advice.verdict import CERTAINTY, difference

    table = _table(
        "does it pay?", ["question"], ["answer", "difference, 95 % interval", "gain", "lose", "clients"]
    )
    for answer in (advice.federating, advice.personalising, advice.common_head):
        if answer is not None:
            table.add_row(
                answer.question,
                answer.verdict,
                difference(answer.gain, answer.interval, advice.metric),
                str(answer.better),
                str(answer.worse),
                str(answer.clients),
            )
    table.caption = CERTAINTY
    return table


def _losers(advice: Advice) -> Table:
    from pflego.advice.verdict import size

    metric = advice.metric
    table = _table(
        "who would lose?",
        ["better off"],
        ["clients", "beyond chance", "by at most", "worst tenth", "worst tenth so"],
    )
    for losers in advice.losers:
        table.add_row(
            losers.otherwise,
            f"{len(losers.losses)} of {losers.clients}",
            str(len(losers.clear)),
            size(max(losers.losses.values(), default=0.0), metric),
            metric.text(losers.worst_tenth),
            metric.text(losers.worst_tenth_otherwise),
        )
    table.caption = (
        "Clients that do better alone, or with one model, than in the way to start with. Beyond chance: with signs of "
        "a client's differences drawn at random, less than 1 in 20 is as bad for it, so up to 1 in 20 clients is "
        "counted where nobody loses."
    )
    return table


def _standings(advice: Advice) -> Table:
    metric = advice.metric
    table = _table(
        f"{metric.name} on held-out samples",
        ["learning"],
        ["all clients", "worst tenth", "rate", "best round"],
    )
    for standing in advice.standings:
        table.add_row(
            standing.words,
            metric.text(standing.figure),
            metric.text(standing.worst_tenth),
            f"{standing.rate:g}",
            str(standing.round),
        )
    table.caption = (
        "rate: of the client's steps, for PFLEGO of the server's (the client's is auto). Rates and rounds are chosen "
        "on other splits than the figures are measured on; shown are those that are best over all."
    )
    return table


def _differences(advice: Advice) -> Table:
    from pflego.advice.verdict import number
    from pflego.advice.words import DEFINITIONS

    found = advice.differences
    table = _table("how different the clients are", ["what"], ["figure", "95 % interval", "beside it"])
    table.add_row(
        "distance of labels",
        number(found.labels.value),
        _interval(found.labels_interval),
        f"{number(found.labels.by_chance)} by chance",
    )
    if found.inputs is not None:
        table.add_row(
            "shift of inputs with one label",
            number(found.inputs.value),
            "",
            f"{number(found.inputs.rarely)} by chance, rarely more",
        )
    if found.all_inputs is not None:
        table.add_row(
            "shift of all inputs",
            number(found.all_inputs.value),
            "",
            f"{number(found.all_inputs.rarely)} by chance, rarely more",
        )
    table.add_row("inequality of sizes (Gini)", number(found.sizes), "", "0 if all have as many")
    for words, rounds in [("own heads", found.own_heads), ("one model", found.one_model)]:
        for round_number, own in rounds.items():
            table.add_row(
                f"cosine of gradients, {words}, round {round_number}",
                number(own.between),
                _interval(own.interval),
                f"{number(own.within)} within a client",
            )
    table.caption = " ".join(f"{what.capitalize()}: {words}" for what, words in DEFINITIONS.items())
    return table


def _interval(interval: Interval) -> str:
    from pflego.advice.verdict import number

    return f"{number(interval.low)} to {number(interval.high)}"


def _costs(advice: Advice) -> Table:
    from pflego.report.words import amount, duration
    from pflego.runs.cost import Energy

    table = _table(
        "what a round costs a client of median size",
        ["learning"],
        ["passes", "work", "memory", "sent both ways", "time here", "energy"],
    )
    for standing in advice.standings:
        cost = standing.cost
        table.add_row(
            standing.words,
            f"{cost.forward_passes:.4g} + {cost.backward_passes:.4g}",
            amount(cost.flops, "FLOP"),
            amount(cost.memory, "B"),
            amount(cost.bytes_down + cost.bytes_up, "B"),
            duration(cost.seconds),
            amount(cost.joules(), "J"),
        )
    table.caption = f"forward + backward passes; energy is an estimate: {Energy()}"
    return table


def _table(title: str, left: list[str], right: list[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption_justify="left")
    for heading in left:
        table.add_column(heading)
    for heading in right:
        table.add_column(heading, justify="right")
    return table
