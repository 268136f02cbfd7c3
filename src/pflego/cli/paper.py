"""pflego paper: the paper's settings, tables and figures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import options
from pflego.cli.terminal import say

if TYPE_CHECKING:
    from pflego.cli.console import Console

app = typer.Typer(
    help="The paper's settings, tables and figures.", no_args_is_help=True, rich_markup_mode="rich"
)

# name: what it is; pflego.paper.experiments has the rest and is not loaded for the help
_EXPERIMENTS = {
    "table1": "Table 1: test accuracy of all methods, degrees of personalisation and data sets.",
    "omniglot": "Table 2: Omniglot, one alphabet per client.",
    "time": "Table 3: seconds per round on Omniglot, with passes and operations.",
    "curves": "Figures 2 to 6: loss and accuracy over the rounds.",
    "tau": "Figure 7: PFLEGO and FedRecon with 5 to 100 local steps, 4 to 28 participants.",
    "participation": "Figure 8: 20, 40, 60 and 100 % of the clients per round.",
    "rates": "Figure 9: client rate against server rate.",
}

Datasets = Annotated[str, typer.Option(help="Data sets, a list mnist,cifar10,... \\[all]")]
Degrees = Annotated[str, typer.Option(help="Degrees of personalisation, a list high,medium,none. \\[all]")]
Methods = Annotated[
    str,
    typer.Option(
        help="Methods, a list; beyond the paper's: pflego-auto, pflego-common. \\[the experiment's]"
    ),
]
Seeds = Annotated[int, typer.Option(help="How many seeds, from --seed on.")]
FirstSeed = Annotated[int, typer.Option(help="The first seed.")]
Rounds = Annotated[int | None, typer.Option(help="T, rounds. \\[the paper's]")]
Scale = Annotated[
    float, typer.Option(help="Share of the clients and participants, each with all of its data.")
]
Out = Annotated[Path, typer.Option(help="Folder for runs and results.")]


@app.command()
def settings(
    preset: Annotated[str | None, typer.Argument(help="One of them, such as mnist-high.")] = None,
    method: Annotated[str, typer.Option(help="Of which method.")] = "pflego",
) -> None:
    """Show the published settings: all best rates, or everything of one preset, as a settings file."""
    from rich.table import Table

    from pflego import paper

    if preset is not None:
        from pflego.runs.record import as_toml
        from pflego.settings.tables import as_tables

        typer.echo(as_toml(as_tables(paper.preset(preset, method))), nl=False)
        return
    names = list(dict.fromkeys(m for name in paper.PRESETS for m in paper.methods(name)))
    table = Table(title="client rate (server rate; mu)", title_justify="left")
    for heading in ("preset", *names):
        table.add_column(heading, no_wrap=True)
    for name in paper.PRESETS:
        cells = []
        for m in names:
            own = paper.preset(name, m) if m in paper.methods(name) else {}
            extra = "; ".join(f"{own[key]}" for key in ("server_lr", "mu") if key in own)
            cells.append(f"{own['client_lr']}{f' ({extra})' if extra else ''}" if own else "–")
        table.add_row(name, *cells)
    _console().print(table)


def _runner(name: str) -> Callable[..., None]:
    def command(
        context: typer.Context,
        datasets: Datasets = "",
        degrees: Degrees = "",
        methods: Methods = "",
        rounds: Rounds = None,
        scale: Scale = 1.0,
        seeds: Seeds = 1,
        seed: FirstSeed = 1,
        out: Out = Path("runs/paper"),
    ) -> None:
        from pflego.errors import UserError, check_positive
        from pflego.paper import cells
        from pflego.paper.experiments import EXPERIMENTS, Choice

        check_positive("seeds", seeds, whole=True)
        given = options.given(context)
        changes = _given(rounds=rounds, split=given.pop("split", None))
        choice = Choice(
            _list(datasets), _list(degrees), _list(methods), range(seed, seed + seeds), scale, changes
        )
        cells.check_names(choice.presets(), choice.methods)
        experiment = EXPERIMENTS[name]
        records = []
        console = _console()
        if not (planned := experiment.cells(choice)):
            raise UserError(
                f"pflego paper {name} has none of these: leave out --datasets, --degrees or --methods"
            )
        try:
            for number, cell in enumerate(planned, start=1):
                console.print(f"{number} of {len(planned)}: {cell.name}", highlight=False, markup=False)
                records.append(
                    cells.run(
                        cell,
                        out,
                        means=given,
                        with_cost=experiment.with_cost,
                        progress=console.is_terminal,
                    )
                )
        except KeyboardInterrupt:
            say("\nstopped; the same command goes on from here", err=True)
            raise typer.Exit(130) from None
        console.print(experiment.table(records, _EXPERIMENTS[name]))
        if picture := experiment.draw(records, out / f"{name}.png"):
            console.print(f"drawn in {picture}", highlight=False, markup=False)

    return command


for _name, _about in _EXPERIMENTS.items():
    _made = app.command(
        _name,
        help=f"{_about} Interrupted, the same command goes on.",
        cls=options.taking(only=["split", "data_dir", "memory", "speedup"]),
    )
    _made(_runner(_name))


@app.command(cls=options.taking(only=["data_dir"]))
def search(
    context: typer.Context,
    preset: Annotated[str, typer.Option(help="Whose rates, such as mnist-high.")] = "mnist-high",
    methods: Methods = "pflego",
    rounds: Rounds = None,
    trials: Annotated[int | None, typer.Option(help="How many points of the grid. \\[all]")] = None,
    seed: FirstSeed = 1,
    out: Out = Path("runs/paper"),
) -> None:
    """Search for the best rates like the appendix, by Optuna, on a fifth of each client's training data.

    Rivals' rates and mu are searched together; of PFLEGO first the server's rate, then the client's, below 2/L as
    measured and at the values that the paper tried and published.
    """
    from rich.table import Table

    from pflego import paper
    from pflego.paper.search import search as look

    table = Table(title=f"best rates of {preset}", title_justify="left")
    for heading in ("method", "found", "validation, %", "trials", "published", "2/L"):
        table.add_column(heading)
    changes = {**_given(rounds=rounds), **options.given(context)}
    for method in _list(methods):
        found = look(preset, method, out, seed=seed, trials=trials, changes=changes)
        theirs = paper.preset(preset, method)
        table.add_row(
            method,
            ", ".join(f"{name} {value}" for name, value in found.rates.items()),
            f"{found.accuracy:.2f}",
            str(found.trials),
            ", ".join(f"{name} {theirs[name]}" for name in found.rates),
            "–" if found.bound is None else f"{found.bound:.3g}",
        )
    _console().print(table)


@app.command()
def results(
    folder: Annotated[Path, typer.Argument(help="Where the experiments were run.")] = Path("runs/paper"),
    out: Annotated[
        Path, typer.Option(help="The page to write; figures go beside it as JSON.", dir_okay=False)
    ] = Path("results.md"),
) -> None:
    """Write all results as one page: ours beside the paper's, and what was reduced."""
    from pflego.paper.results import write

    say(f"{write(folder, out)} results in {out}")


def _console() -> Console:
    """Make a console that cuts wide tables for a terminal, but not for a file."""
    from pflego.cli.console import Console

    return Console() if sys.stdout.isatty() else Console(width=180)


def _given(**options: object) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _list(text: str) -> list[str]:
    return [word.strip().lower() for word in text.split(",") if word.strip()]
