"""pflego data: which data sets there are, and how they are divided."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from pflego.federation import Federation

app = typer.Typer(
    help="Data sets: which there are, fetch them, see who gets what.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("list")
def list_sets(data_dir: options.DataDir = None) -> None:
    """List the data sets, and where they are or how large they are to download."""
    from rich.console import Console
    from rich.table import Table

    from pflego.data.listing import listing

    table = Table()
    table.add_column("name", no_wrap=True)
    for heading in ("training", "test", "classes", "a sample"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for line in listing(data_dir):
        table.add_row(
            line.name,
            f"{line.train:,}",
            f"{line.test:,}",
            f"{line.classes:,}" if line.classes else "–",
            "×".join(map(str, line.shape)),
            line.where,
        )
    Console().print(table)


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="mnist, fashion-mnist, emnist, ...")],
    data_dir: options.DataDir = None,
) -> None:
    """Fetch data sets into the cache, checked against their published checksums.

    An interrupted download goes on where it stopped. What the data folder has is not fetched.
    """
    from pflego.data import sets
    from pflego.data.cache import arrays

    for name in names:
        if name in sets.EMBEDDED:
            typer.echo(f"{name} is embedded, there is nothing to fetch")
            continue
        source = sets.get(name, data_dir=data_dir)
        arrays(name, source)
        typer.echo(f"{name} is in {source.place}")


@app.command()
def show(
    data: Annotated[str, typer.Argument(metavar="NAME", help="A data set, or a .npz file.")],
    clients: options.Clients = None,
    classes_per_client: options.ClassesPerClient = None,
    partition: options.Partition = None,
    alpha: options.Alpha = None,
    column: options.Column = None,
    split: options.Split = None,
    rotations: options.Rotations = None,
    data_dir: options.DataDir = None,
    data_seed: options.DataSeed = None,
    seed: options.Seed = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Picture to draw (.png, .svg, .pdf): who holds what, examples of classes."),
    ] = None,
) -> None:
    """Show how a data set is divided, with the options of [bold]pflego run[/bold].

    [bold]pflego data show digits --clients 10 --partition dirichlet --alpha 0.3 --out digits.png[/bold]
    """
    given = options.given({k: v for k, v in locals().items() if k != "out"})

    from rich.console import Console

    from pflego.data import picture
    from pflego.data.catalogue import KNOWN
    from pflego.experiment import load_data

    if out is not None:
        picture.check(out)
    federation = load_data(given)
    console = Console()
    console.print(_summary(Path(data).stem, federation))
    if out is not None:
        entry = KNOWN.get(data)
        picture.draw(
            federation,
            out,
            title=f"{Path(data).stem}: {len(federation)} clients, {federation.samples:,} training samples",
            class_names=entry.class_names if entry else (),
            picture=entry.picture if entry else (),
        )
        console.print(f"drawn in {out}", highlight=False, markup=False, soft_wrap=True)


def _summary(name: str, federation: Federation) -> Table:
    """Clients, samples and classes in a few lines."""
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
    return table
