"""pflego join: a new client gets a model, and takes part from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflego.cli import whose
from pflego.cli.terminal import say


def join(
    run: whose.Folder,
    client: Annotated[str, typer.Option(help="What to call it.", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Option(
            help="The client's labelled samples, like the training data; not needed for one that --leave-out left out.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps on its own head. \\[until it hardly gets better]")
    ] = None,
    alone: Annotated[
        int | None,
        typer.Option(help="Rounds of learning alone, to compare with. \\[as the others had, at most 20]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the enlarged run; RUN stays as it is. \\[RUN]")
    ] = None,
    trust: whose.Trust = False,
) -> None:
    """Let a new client in: a head for the trained backbone, in seconds, and its place in the federation.

    [bold]pflego join runs/a --client new --data new.csv[/bold]

    [bold]pflego run --resume --out runs/a --rounds 60[/bold] then trains on with everybody. The file must stay where
    it is.
    """
    from rich.table import Table

    from pflego.after import joining
    from pflego.cli.console import Console
    from pflego.cli.run import percent
    from pflego.settings.open_run import open_run

    opened = open_run(run, trust=trust)
    new_id = whose.new_id(client, opened.federation)
    federation = (
        joining.enlarged_left_out(opened.federation, new_id)
        if data is None
        else joining.enlarged_from_file(opened.federation, new_id, data)
    )
    joined = joining.join(opened, federation, steps=steps, alone=alone, out=out)
    task = opened.federation.task
    new = federation[len(federation) - 1]
    say(f"client {joined.client}, {len(new.x_train)} training and {len(new.x_test)} test samples")
    table = Table(show_header=False)
    for label, score in [
        ("now", joined.score),
        ("with an untrained head", joined.untrained),
        ("learning alone", joined.alone),
    ]:
        if score is not None:
            table.add_row(f"{task.metric} {label}", percent(score.value(task), task.metric))
    Console().print(table)
    say(
        f"it takes part from now on: pflego run --resume --out {joined.run.folder} --rounds {len(opened.history) + 10}"
    )
