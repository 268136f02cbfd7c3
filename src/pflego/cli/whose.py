"""Which clients are meant: by a name on the command line, or by the names in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.errors import SettingError

if TYPE_CHECKING:
    from pflego.data.schema import Samples
    from pflego.federation.roster import ClientId, Federation

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Load code that the folder names or holds (module:Name, model.pt2). Only if you know who made it.",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)]


def clients_called(names: list[str], federation: Federation, run: Path) -> list[ClientId]:
    """Find the clients of these names; an id may be a number, whose name is how it is written."""
    known = {str(client_id): client_id for client_id in federation.ids}
    for name in names:
        if name not in known:
            some = ", ".join(list(known)[:5]) + (", ..." if len(known) > 5 else "")
            raise SettingError(
                f"no client of {run} is called {name!r}, it has {len(known)}: {some}. "
                f"A new client gets a model with: pflego join {run} --client {name} --data FILE"
            )
    return [known[name] for name in names]


def new_id(name: str, federation: Federation) -> ClientId:
    """Return the id of a new client: a number, if its name is one and all others are numbers."""
    numbers = name.isdecimal() and all(isinstance(client_id, int) for client_id in federation.ids)
    return int(name) if numbers else name


def owners(
    samples: Samples, file: Path, client: str | None, federation: Federation, run: Path
) -> list[ClientId]:
    """Return the client of each sample: one client for all, if it is named, or as the file says."""
    if client is not None:
        return clients_called([client], federation, run) * len(samples.rows)
    if samples.clients is None:
        raise SettingError(f"{file} does not say whose its samples are: name a client with --client")
    return clients_called([str(name) for name in samples.clients], federation, run)
