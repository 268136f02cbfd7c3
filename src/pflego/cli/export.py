"""pflego export: a client's model as files that need neither the run nor its data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflego.cli import whose
from pflego.errors import check_choice


def export(
    run: whose.Folder,
    client: Annotated[str, typer.Option(help="Whose model.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the model.", show_default=False)],
    format: Annotated[str, typer.Option(help="safetensors, torch (torch.export), onnx, or all.")] = "all",
    adapt: Annotated[
        bool,
        typer.Option("--adapt", help="First take the client's local steps against the present backbone."),
    ] = False,
) -> None:
    """Write a client's model as files: weights beside a description, a torch.export program, ONNX.

    [bold]pflego export runs/a --client 3 --out model-3[/bold]

    [bold]pflego predict model-3 --data new.csv[/bold] uses it, and so do torch.export.load and ONNX runtimes. All
    take samples as the client has them and give the same outputs.
    """
    from pflego.experiment import open_run
    from pflego.export import FORMATS

    check_choice("format", format, [*FORMATS, "all"])
    opened = open_run(run)
    (id,) = whose.clients_called([client], opened.federation, run)
    wanted = [one for one in FORMATS if format in (one, "all")]
    done = opened.export(id, out, formats=wanted, adapt=adapt)
    for name, why in done.refused.items():
        typer.echo(f"no {name} file: {why}", err=True)
    typer.echo(f"client {id}'s model in {out}: {', '.join(path.name for path in done.files.values())}")
