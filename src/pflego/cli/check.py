"""pflego data check: what would be trained on, and what looks wrong with it, before anything runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import options
from pflego.cli.terminal import one_line

if TYPE_CHECKING:
    from rich.table import Table

    from pflego.data.check import Findings
    from pflego.federation.roster import Federation

DataArgument = Annotated[
    str, typer.Argument(metavar="NAME|PATH", help="A data set, or your own: a file or a folder.")
]

_SHOWN = 30  # columns or classes in a table


def check(
    context: typer.Context,
    data: DataArgument,
) -> None:
    """Check data before a run: who holds what, how columns become inputs, what looks wrong.

    [bold]pflego data check patients.csv --column hospital --label diagnosis[/bold]

    The options are those of [bold]pflego run[/bold]. Data that cannot be trained on give exit status 2.
    """
    given = {"data": data, **options.given(context)}

    from pflego.cli.console import Console
    from pflego.data.check import examine
    from pflego.data.problems import DataProblems
    from pflego.settings.experiment import load_data
    from pflego.settings.tables import command

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        try:
            federation = load_data(given)
        except DataProblems as error:
            for problem in [*error.problems, *(str(one.message) for one in said)]:
                typer.echo(f"pflego: {one_line(problem)}", err=True)
            raise typer.Exit(2) from error
    findings = examine(federation)
    console = Console()
    console.print(holdings(Path(data).stem, federation))
    for table in _tables(findings):
        console.print(table)
    for fact in findings.facts:
        console.print(f"- {fact}", markup=False, highlight=False, soft_wrap=True)
    looks_wrong = [*(str(one.message) for one in said), *findings.warnings]
    for words in looks_wrong:
        console.print(f"! {words}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    verdict = (
        f"ready, but see {len(looks_wrong)} warning{'s' * (len(looks_wrong) > 1)}" if looks_wrong else "ready"
    )
    console.print(f"{verdict}; to train:")
    console.print(command(given), style="bold", markup=False, highlight=False, soft_wrap=True)


def holdings(name: str, federation: Federation) -> Table:
    """Tabulate clients, samples and classes in a few lines."""
    from statistics import median

    from rich.table import Table

    members = list(federation)
    table = Table(title=f"{name}, {len(federation)} clients", title_justify="left")
    table.add_column("a client has")
    for heading in ("least", "median", "most", "in all"):
        table.add_column(heading, justify="right")
    lines = {
        "training samples": ([len(client.x_train) for client in members], federation.samples),
        "test samples": ([len(c.x_test) for c in members], sum(len(c.x_test) for c in members)),
    }
    if federation.classes is not None:
        lines["classes"] = ([len(client.classes) for client in members], len(federation.classes))
    for label, (values, total) in lines.items():
        table.add_row(label, f"{min(values):,}", f"{median(values):,.10g}", f"{max(values):,}", f"{total:,}")
    if federation.weighted:
        sums = federation.masses.tolist()
        figures = (min(sums), median(sums), max(sums), sum(sums))
        table.add_row("sum of weights", *(f"{figure:,.6g}" for figure in figures))
    return table


def _tables(findings: Findings) -> Iterator[Table]:
    """Tabulate the columns and the classes, or the first of very many."""
    from rich.markup import escape
    from rich.table import Table

    from pflego.data.check import encoding

    if features := findings.schema.features:
        columns = Table("column", "becomes")
        columns.add_column("inputs", justify="right")
        for feature in features[:_SHOWN]:
            columns.add_row(
                escape(feature.name), escape(encoding(feature)), str(feature.width or findings.schema.inputs)
            )
        if len(features) > _SHOWN:
            rest = sum(feature.width for feature in features[_SHOWN:])
            columns.add_row(f"{len(features) - _SHOWN} more", "", str(rest))
        if findings.schema.weight is not None:
            columns.add_row(escape(findings.schema.weight), "weight: how much a row counts", "0")
        yield columns
    if classes := findings.classes:
        named = Table(f"class ({escape(findings.schema.label)})" if findings.schema.label else "class")
        for heading in ("training", "test", "clients"):
            named.add_column(heading, justify="right")
        for one in classes[:_SHOWN]:
            named.add_row(escape(one.name), f"{one.train:,}", f"{one.test:,}", f"{one.clients:,}")
        if len(classes) > _SHOWN:
            named.add_row(f"{len(classes) - _SHOWN} more", "", "", "")
        yield named
