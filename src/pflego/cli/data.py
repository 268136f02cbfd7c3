"""pflego data: which data sets there are, how they are divided, and whether your own can be trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import options
from pflego.cli.check import DataArgument, check, holdings
from pflego.cli.terminal import say

if TYPE_CHECKING:
    from pflego.federation.roster import Federation

app = typer.Typer(
    help="Data sets: which there are, fetch them, see who gets what. Check your own before a run.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command(cls=options.taking("data", only=["seed"]))(check)


@app.command("list", cls=options.taking(only=["data_dir"]))
def list_sets(context: typer.Context) -> None:
    """List the data sets, who their clients are by nature, and where they are or how large they are to download."""
    from rich.table import Table

    from pflego.cli.console import Console
    from pflego.data.sets.listing import listing

    table = Table()
    table.add_column("name", no_wrap=True)
    for heading in ("training", "test", "classes", "a sample"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for line in listing(_data_dir(context)):
        table.add_row(
            line.name,
            f"{line.train:,}",
            f"{line.test:,}",
            f"{line.classes:,}" if line.classes else "–",
            "×".join(map(str, line.shape)),
            f"{line.clients}: {line.where}" if line.clients else line.where,
        )
    Console().print(table)


@app.command(cls=options.taking(only=["data_dir"]))
def get(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="mnist, fashion-mnist, emnist, ...")],
) -> None:
    """Fetch data sets into the cache, checked against their published checksums.

    An interrupted download goes on where it stopped. What the data folder has is not fetched.
    """
    from pflego.data import sets
    from pflego.data.sets.cache import arrays
    from pflego.data.sets.catalogue import KNOWN

    for name in names:
        entry = KNOWN.get(name)
        if entry is not None and not entry.remotes and not entry.home:
            say(f"{name} is embedded, there is nothing to fetch")
            continue
        source = sets.get(name, data_dir=_data_dir(context))
        if entry is None or not entry.tables:
            arrays(name, source)
        say(f"{name} is in {source.place}")


@app.command(cls=options.taking("data", only=["seed"]))
def show(
    context: typer.Context,
    data: DataArgument,
    out: Annotated[
        Path | None,
        typer.Option(help="Picture to draw (.png, .svg, .pdf): who holds what, examples of classes."),
    ] = None,
) -> None:
    """Show how a data set is divided, with the options of [bold]pflego run[/bold].

    [bold]pflego data show digits --clients 10 --partition dirichlet --alpha 0.3 --out digits.png[/bold]
    """
    given = {"data": data, **options.given(context)}

    from pflego.cli.console import Console
    from pflego.data.schema import schema_of
    from pflego.data.sets.catalogue import KNOWN
    from pflego.report import holdings as picture
    from pflego.settings.experiment import load_data

    if out is not None:
        picture.check(out)
    federation = load_data(given)
    console = Console()
    console.print(holdings(Path(data).stem, federation))
    if out is not None:
        entry = KNOWN.get(data)
        picture.draw(
            federation,
            out,
            title=f"{Path(data).stem}: {len(federation)} clients, {federation.samples:,} training samples"
            + _shifted(federation),
            class_names=entry.class_names if entry else schema_of(federation).class_names,
            picture=entry.picture if entry else (),
        )
        console.print(f"drawn in {out}", highlight=False, markup=False, soft_wrap=True)


@app.command(cls=options.taking("data", only=["seed"]))
def schema(
    context: typer.Context,
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("schema.json"),
) -> None:
    """Write down how values become inputs, for sites that each have only data of their own.

    [bold]pflego data schema patients.csv --column hospital --label diagnosis --out schema.json[/bold]

    It holds the columns with the mean and standard deviation of each, the categories and the classes, and no sample.
    A site reads its own file by it: [bold]pflego run --data north.csv --schema schema.json[/bold]
    """
    given = {"data": data, **options.given(context)}

    from pflego.data.schema import schema_of
    from pflego.files import make_folder, write_atomically
    from pflego.settings.experiment import load_data

    written = schema_of(load_data(given)).to_json()
    make_folder(out.parent)
    write_atomically(out, written.encode())
    say(f"written to {out}")


def _shifted(federation: Federation) -> str:
    """Say in a title how clients were made different."""
    said = federation.source
    return f", shift: {said['shift']}, one row per client" if "shift" in said else ""


def _data_dir(context: typer.Context) -> Path | None:
    folder = options.given(context).get("data_dir")
    return None if folder is None else Path(str(folder))
