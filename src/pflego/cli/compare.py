"""pflego compare: several methods on the same federation, cohorts and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from pflego.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from pflego.comparison.compare import Entry


_FIGURES = ("everyone_adapted", "everyone", "ceiling", "participants")
_OVER_CLIENTS = {"client_mean": "mean", "spread": "spread", "worst_tenth": "worst tenth"}


def compare(
    context: typer.Context,
    settings: options.SettingsFile = None,
    algorithms: Annotated[
        str, typer.Option(help="Methods to compare: all, or a list pflego,fedavg,module:Class,...")
    ] = "all",
    rates: Annotated[
        str,
        typer.Option(
            help="Each method's main rate: search (the same short search for all, on a part of the clients' own "
            "training data), given (as it is), or paper (their settings in the paper's experiment with these data)."
        ),
    ] = "search",
    seeds: Annotated[int, typer.Option(help="How many seeds, from --seed on, for mean and spread.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the results, a folder per method.")] = Path(
        "runs/compare"
    ),
) -> None:
    r"""Compare methods: same federation, same cohorts, same seeds for every one.

    [bold]pflego compare --algorithms pflego,fedavg,fedper --rounds 50 --participation 5[/bold]

    A setting goes to the methods that have it. What differs between methods stands in a settings file, in a table per
    method: [bold]\[fedprox][/bold] with [bold]mu = 0.1[/bold] below it. A main rate (the server's, or the clients')
    that is not given is chosen for each method by the same short search, on data set aside from the clients' own
    training data; what was chosen and what that cost is told. Methods are ranked by the figure of everyone, adapted.
    Interrupted, the same command goes on where it stopped. The folder holds comparison.json, comparison.png and the
    runs.
    """
    given = options.given(context)

    from pflego.cli.console import Console
    from pflego.comparison.compare import choose, draw_curves
    from pflego.comparison.compare import compare as train_all
    from pflego.comparison.rates import Rates
    from pflego.engines.peers import check_alone
    from pflego.errors import check_positive, unknown
    from pflego.settings.tables import read_settings

    check_alone("a comparison is one process; pflego run --engine distributed trains in several")
    check_positive("seeds", seeds, whole=True)
    if rates not in get_args(Rates):
        raise unknown("rates", rates, get_args(Rates))
    base = {} if settings is None else read_settings(settings)
    given = {**base, **given}
    first = int(str(given.get("seed", 0)))
    names = choose(algorithms)
    try:
        entries = train_all(
            given,
            names,
            range(first, first + seeds),
            out,
            rates=rates,  # type: ignore[arg-type]  # checked above
            told=lambda chosen: typer.echo(f"chosen for {chosen}", err=True),
        )
    except KeyboardInterrupt:
        typer.echo("\nstopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    console = Console()
    for table in tables(entries):
        console.print(table)
    picture = draw_curves(entries, out / "comparison.png")
    beside = f"pflego report {quote(str(out))}/*/seed-{first} --out {quote(str(out / 'report.html'))}"
    for line in (f"results in {out}, curves in {picture}", f"client by client: {beside}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def tables(entries: Sequence[Entry]) -> list[Table]:
    """Tabulate quality and cost, one line per method, best first; over seeds, mean ± standard deviation."""
    from rich.table import Table

    from pflego.runs.cost import Energy
    from pflego.runs.summary import EXPLAINED

    metric = entries[0].summary.metric
    scale, unit = (100, ", %") if metric == "accuracy" else (1, "")
    methods = _by_method(entries)
    adapted = any(entry.summary.everyone_adapted is not None for entry in entries)
    figures = [name for name in _FIGURES if any(getattr(e.summary, name) is not None for e in entries)]
    quality = Table(title=f"{metric}{unit}", title_justify="left")
    clients = Table(title=f"{metric}{unit} of everyone, over clients", title_justify="left")
    cost = Table(title="what a round costs a client of median size", title_justify="left")
    headings = {
        quality: [*(name.replace("_", " ") for name in figures), "loss"],
        clients: [*_OVER_CLIENTS.values(), "Gini"],
        cost: ["passes", "GFLOP", "MB of memory", "MB sent", "joules", "seconds", "seconds of the run"],
    }
    for table, columns in headings.items():
        table.add_column("method", no_wrap=True)
        for heading in columns:
            table.add_column(heading, justify="right")
    for name, own in methods.items():
        quality.add_row(
            name,
            *(_mean([getattr(e.summary, key) for e in own], scale) for key in figures),
            _mean([e.summary.loss for e in own], digits=4),
        )
        clients.add_row(
            name,
            *(_mean([getattr(e.summary, key) for e in own], scale) for key in _OVER_CLIENTS),
            _mean([e.summary.gini for e in own], digits=3),
        )
        cost.add_row(
            name,
            f"{own[0].cost.forward_passes:g} + {own[0].cost.backward_passes:g}",
            _mean([e.cost.flops / 1e9 for e in own], digits=3),
            _mean([e.cost.memory / 1e6 for e in own], digits=1),
            _mean([(e.cost.bytes_up + e.cost.bytes_down) / 1e6 for e in own]),
            _mean([e.cost.joules() for e in own]),
            _mean([e.cost.seconds for e in own], digits=4),
            _mean([e.summary.seconds for e in own], digits=1),
        )
    quality.caption = "\n".join(
        [f"Ranked by {'everyone adapted' if adapted else 'everyone'}."]
        + [f"{name.replace('_', ' ')}: {EXPLAINED[name]}" for name in figures]
    )
    quality.caption_justify = "left"
    cost.caption = f"forward + backward passes; sent both ways; joules are an estimate: {Energy()}"
    return [quality, clients, cost]


def _by_method(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Map method to its entries, in the order of everyone's adapted figure, the best first.

    Adapted, every client has taken its method's local steps: methods that share a whole model and those that keep a
    part of it at home are then judged alike. Where it is not known everyone's figure decides.
    """
    key = "everyone_adapted" if any(e.summary.everyone_adapted is not None for e in entries) else "everyone"

    def rank(name: str) -> float:
        figures = [f for e in methods[name] if (f := getattr(e.summary, key)) is not None]
        mean = sum(figures) / len(figures) if figures else 0.0
        return -mean if entries[0].summary.higher_is_better else mean

    methods: dict[str, list[Entry]] = {}
    for entry in entries:
        methods.setdefault(entry.summary.algorithm, []).append(entry)
    return {name: methods[name] for name in sorted(methods, key=rank)}


def _mean(values: Sequence[float | None], scale: float = 1, digits: int = 2) -> str:
    from statistics import fmean, stdev

    known = [value * scale for value in values if value is not None]
    if not known:
        return "–"
    return f"{fmean(known):.{digits}f}" + (f" ± {stdev(known):.{digits}f}" if len(known) > 1 else "")
