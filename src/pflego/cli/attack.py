"""pflego attack: rules of aggregation against clients that lie."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflego.cli import options
from pflego.cli.terminal import say


def attack(
    context: typer.Context,
    settings: options.SettingsFile = None,
    rules: Annotated[
        str | None,
        typer.Option(
            help="Rules of aggregation, a list: mean,median,trimmed:0.2,krum:4. \\[all, made for this share of liars]"
        ),
    ] = None,
    lies: Annotated[
        str,
        typer.Option(
            help="What liars do, a list: sign, scale:10, noise:10, samples:10 (false sample counts), labels (flipped), "
            "shuffle (labels at random), little (a little is enough; little:1.5 with its z); several at once: "
            "samples+sign."
        ),
    ] = "sign,scale,noise,samples+sign,labels,shuffle,little",
    share: Annotated[float, typer.Option(help="Which part of the clients lies.")] = 0.2,
    seeds: Annotated[int, typer.Option(help="How many seeds, from --seed on, for mean and spread.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the results, a folder per rule and lie.")] = Path(
        "runs/attack"
    ),
) -> None:
    r"""Attack a federation: what honest clients lose to a robust rule, and keep under an attack.

    [bold]pflego attack --algorithm pflego --clients 20 --participation 10 --rounds 50 --share 0.2[/bold]

    Trains one method with every rule and every lie on the same federation and cohorts, and once without a lie. The same
    clients lie throughout; figures are of the others, each with its own model. Liars know what they would have sent
    themselves, and those of [bold]little[/bold] what the other liars of a round would have; nobody knows honest
    clients' work. Interrupted, the same command goes on where it stopped. The folder holds the runs, and attack .json,
    .csv, .md, .tex and .png.
    """
    given = options.given(context)

    from pflego.cli.console import Console, shown
    from pflego.comparison.attack import attack as train_all
    from pflego.comparison.attack_figures import as_csv, draw, sheets
    from pflego.comparison.tables import as_latex, as_markdown
    from pflego.engines.peers import check_alone
    from pflego.errors import SettingError, check_positive
    from pflego.files import write_atomically
    from pflego.settings.tables import read_settings

    check_alone("an attack is one process; pflego run --engine distributed trains in several")
    check_positive("seeds", seeds, whole=True)
    given = {**({} if settings is None else read_settings(settings)), **given}
    for name in ("aggregation", "liars"):
        if name in given:
            raise SettingError(f"{name} is what an attack tries: give --rules and --lies instead")
    first = int(str(given.get("seed", 0)))
    try:
        trials = train_all(
            given,
            rules=None if rules is None else _listed(rules),
            lies=_listed(lies),
            share=share,
            seeds=range(first, first + seeds),
            folder=out,
            progress=True,
        )
    except KeyboardInterrupt:
        say("\nstopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    console = Console()
    made = sheets(trials)
    for sheet in made:
        console.print(shown(sheet))
    written = {"md": as_markdown(made), "tex": as_latex(made), "csv": as_csv(trials)}
    for suffix, text in written.items():
        write_atomically(out / f"attack.{suffix}", text.encode())
    picture = draw(trials, out / "attack.png")
    console.print(f"results in {out}, a picture in {picture}", highlight=False, markup=False, soft_wrap=True)


def _listed(text: str) -> list[str]:
    return [part for each in text.split(",") if (part := each.strip())]
