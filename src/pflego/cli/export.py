"""pflego export: a client's model as files that need neither the run nor its data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import whose
from pflego.cli.terminal import one_line, say
from pflego.errors import check_choice

if TYPE_CHECKING:
    from pflego.after.export import Exported
    from pflego.after.export import Format as FileFormat

Out = Annotated[Path, typer.Option(help="Folder for the model.", show_default=False)]
Format = Annotated[str, typer.Option("--format", help="safetensors, torch (torch.export), onnx, or all.")]
Adapt = Annotated[
    bool, typer.Option("--adapt", help="First take the client's local steps against the present backbone.")
]


def export(
    run: whose.Folder,
    client: Annotated[str, typer.Option(help="Whose model.", show_default=False)],
    out: Out,
    file_format: Format = "all",
    adapt: Adapt = False,
    trust: whose.Trust = False,
) -> None:
    """Write a client's model as files: weights beside a description, a torch.export program, ONNX.

    [bold]pflego export runs/a --client 3 --out model-3[/bold]

    [bold]pflego predict model-3 --data new.csv[/bold] uses it, and so do torch.export.load and ONNX runtimes. All
    take samples as the client has them and give the same outputs.
    """
    from pflego.settings.open_run import open_run

    formats = formats_called(file_format)
    opened = open_run(run, trust=trust)
    (client_id,) = whose.clients_called([client], opened.federation, run)
    tell(f"client {client_id}'s model", opened.export(client_id, out, formats=formats, adapt=adapt))


def formats_called(name: str) -> list[FileFormat]:
    """List the formats of a name; `all` is all of them."""
    from pflego.after.export import FORMATS

    check_choice("format", name, [*FORMATS, "all"])
    return [one for one in FORMATS if name in (one, "all")]


def tell(what: str, done: Exported) -> None:
    """Say which files were written, and which were not."""
    for name, why in done.refused.items():
        say(f"no {name} file: {one_line(why)}", err=True)
    say(f"{one_line(what)} in {done.folder}: {', '.join(path.name for path in done.files.values())}")
