"""pflego compare: several methods on the same federation, cohorts and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from pflego.comparison import Entry


@options.spelled_out
def compare(
    settings: options.SettingsFile = None,
    algorithms: Annotated[
        str, typer.Option(help="Methods to compare: all, or a list pflego,fedavg,...")
    ] = "all",
    seeds: Annotated[int, typer.Option(help="How many seeds, from --seed on, for mean and spread.")] = 1,
    data: options.Data = None,
    of_data: options.Bundle = None,
    model: options.ModelName = None,
    steps: options.Steps = None,
    client_lr: options.ClientLr = None,
    server_lr: options.ServerLr = None,
    labels: options.Labels = None,
    common_head: options.CommonHead = None,
    participation: options.Participation = None,
    rounds: options.Rounds = None,
    dropout: options.Dropout = None,
    missing: options.Missing = None,
    seed: options.Seed = None,
    evaluate_every: options.EvaluateEvery = None,
    batch_size: options.BatchSize = None,
    memory: options.Memory = None,
    states: options.StatesPlace = None,
    device: options.Device = None,
    out: Annotated[Path, typer.Option(help="Folder for the results, a folder a method.")] = Path(
        "runs/compare"
    ),
) -> None:
    r"""Compare methods: same federation, same cohorts, same seeds for every one.

    [bold]pflego compare --algorithms pflego,fedavg,fedper --rounds 50 --participation 5[/bold]

    A setting goes to the methods that have it. What differs between methods stands in a settings file, in a table a
    method: [bold]\[fedprox][/bold] with [bold]mu = 0.1[/bold] below it. Interrupted, the same command goes on where it
    stopped. The folder holds comparison.json, comparison.png and the runs.
    """
    given = options.given(
        {k: v for k, v in locals().items() if k not in {"settings", "algorithms", "seeds", "out"}}
    )

    from rich.console import Console

    from pflego import comparison
    from pflego.errors import check_positive
    from pflego.experiment import DEFAULTS, read_settings
    from pflego.peers import check_alone

    check_alone("a comparison is one process; pflego run --engine distributed trains in several")
    check_positive("seeds", seeds, whole=True)
    base = {} if settings is None else read_settings(settings)
    given = {**base, **given}
    first = int(str(given.get("seed", DEFAULTS["seed"])))
    names = comparison.choose(algorithms)
    try:
        entries = comparison.compare(given, names, range(first, first + seeds), out)
    except KeyboardInterrupt:
        typer.echo("\nstopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    console = Console()
    for table in tables(entries):
        console.print(table)
    picture = comparison.draw_curves(entries, out / "comparison.png")
    beside = f"pflego report {quote(str(out))}/*/seed-{first} --out {quote(str(out / 'report.html'))}"
    for line in (f"results in {out}, curves in {picture}", f"client by client: {beside}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def tables(entries: Sequence[Entry]) -> list[Table]:
    """How good and how costly: a line a method, the best first; over several seeds, mean ± standard deviation."""
    from rich.table import Table

    from pflego.cost import Energy

    metric = entries[0].summary.metric
    scale, unit = (100, ", %") if metric == "accuracy" else (1, "")
    methods = _by_method(entries)
    quality = Table(title=f"{metric}{unit}", title_justify="left")
    cost = Table(title="what a round costs a client of median size", title_justify="left")
    headings = {
        quality: ("everyone", "spread over clients", "worst tenth", "participants", "loss"),
        cost: ("passes", "GFLOP", "MB of memory", "MB sent", "joules", "seconds", "seconds of the run"),
    }
    for table, columns in headings.items():
        table.add_column("method", no_wrap=True)
        for heading in columns:
            table.add_column(heading, justify="right")
    for name, own in methods.items():
        quality.add_row(
            name,
            *(
                _mean([getattr(e.summary, key) for e in own], scale)
                for key in ("everyone", "spread", "worst_tenth", "participants")
            ),
            _mean([e.summary.loss for e in own], digits=4),
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
    cost.caption = f"forward + backward passes; sent both ways; joules are an estimate: {Energy()}"
    return [quality, cost]


def _by_method(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries of each method, the methods in the order of everyone's figure, the best first."""

    def rank(name: str) -> float:
        figures = [e.summary.everyone for e in methods[name] if e.summary.everyone is not None]
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
