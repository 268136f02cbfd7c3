"""pflego compare: several methods on the same federation, cohorts and seeds."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, get_args

import typer

from pflego.cli import options
from pflego.cli.terminal import say


def compare(
    context: typer.Context,
    settings: options.SettingsFile = None,
    algorithms: Annotated[
        str,
        typer.Option(
            help="Methods to compare: all, or a list: pflego,fedavg,module:Class; a variant has settings of its own: "
            "fedavg+fine_tune=5."
        ),
    ] = "all",
    rates: Annotated[
        str,
        typer.Option(
            help="Each method's main rate: search (the same short search for all, on a part of the clients' own "
            "training data), given (as it is), or paper (their settings in the paper's experiment with these data)."
        ),
    ] = "search",
    protocol: Annotated[
        str | None,
        typer.Option(
            help="An experiment that others report, such as pfllib-fashion-2: its settings, unless others are given, "
            "and its figures beside ours."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from --seed on, for mean and spread.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the results, a folder per method.")] = Path(
        "runs/compare"
    ),
) -> None:
    r"""Compare methods: same federation, same cohorts, same seeds for every one.

    [bold]pflego compare --algorithms pflego,fedavg,fedper --rounds 50 --participation 5[/bold]

    A setting goes to the methods that have it. What differs between methods stands in a settings file, in a table per
    method: [bold]\[fedprox][/bold] with [bold]mu = 0.1[/bold] below it; or in a variant's name,
    [bold]fedavg+fine_tune=5[/bold]; [bold]pflego+batch_size=none[/bold] is without what the others are given. A main
    rate (the server's, or the clients') that is not given is chosen for each method by the same short search, on data
    set aside from the clients' own training data; what was chosen and what that cost is told. Methods are ranked by the
    figure of everyone, adapted; many are grouped by kind, and over several seeds those that chance may have put behind
    the best are marked =.
    Interrupted, the same command goes on where it stopped. The folder holds the runs, and comparison .json, .csv, .md,
    .tex and .png.
    """
    given = options.given(context)

    from pflego.cli.console import Console, shown
    from pflego.comparison.compare import compare as train_all
    from pflego.comparison.compare import draw_curves
    from pflego.comparison.protocols import find_protocol
    from pflego.comparison.rates import Rates
    from pflego.comparison.tables import as_csv, as_latex, as_markdown, sheets
    from pflego.comparison.variants import choose
    from pflego.engines.peers import check_alone
    from pflego.errors import check_positive, unknown
    from pflego.files import write_atomically
    from pflego.settings.tables import read_settings

    check_alone("a comparison is one process; pflego run --engine distributed trains in several")
    check_positive("seeds", seeds, whole=True)
    if rates not in get_args(Rates):
        raise unknown("rates", rates, get_args(Rates))
    theirs = None if protocol is None else find_protocol(protocol)
    base = {} if settings is None else read_settings(settings)
    given = {**(theirs.settings if theirs else {}), **base, **given}
    first = int(str(given.get("seed", 0)))
    names = choose(algorithms)
    try:
        entries = train_all(
            given,
            names,
            range(first, first + seeds),
            out,
            rates=rates,  # type: ignore[arg-type]  # checked above
            told=lambda chosen: say(f"chosen for {chosen}", err=True),
        )
    except KeyboardInterrupt:
        say("\nstopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    console = Console()
    made = sheets(entries, theirs)
    for sheet in made:
        console.print(shown(sheet))
    written = {"md": as_markdown(made), "tex": as_latex(made), "csv": as_csv(entries)}
    for suffix, text in written.items():
        write_atomically(out / f"comparison.{suffix}", text.encode())
    picture = draw_curves(entries, out / "comparison.png")
    beside = f"pflego report {quote(str(out))}/*/seed-{first} --out {quote(str(out / 'report.html'))}"
    for line in (f"results in {out}, curves in {picture}", f"client by client: {beside}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
