"""pflego deploy gateway and token: clients in browsers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from pflego.cli.terminal import say
from pflego.errors import MissingExtraError, SettingError

Tokens = Annotated[Path, typer.Option(help="The file that says who may come in.")]


def gateway(
    folder: Annotated[Path, typer.Argument(help="The folder of the Flower app.", show_default=False)],
    kit: Annotated[Path, typer.Option(help="The folder that pflego kit has made for this app.")] = Path(
        "kit"
    ),
    tokens: Tokens = Path("tokens.json"),
    port: Annotated[int, typer.Option(help="Where it listens.", min=1, max=65535)] = 8001,
    host: Annotated[
        str,
        typer.Option(
            help="The address that it listens on: it speaks plain HTTP, so let nginx stand before it."
        ),
    ] = "127.0.0.1",
) -> None:
    """Serve and train with clients in browsers alone. The same command again goes on after the last checkpoint.

    [bold]pflego deploy gateway trial --kit kit --tokens tokens.json[/bold]

    For browsers beside sites on Flower, set gateway_port in the app and use [bold]pflego deploy server[/bold].
    """
    needs_flower()
    from pflego.deploy.gateway.alone import run

    changes = {
        "gateway_port": port,
        "gateway_host": host,
        "gateway_kit": str(kit),
        "gateway_tokens": str(tokens),
    }
    run(folder, changes, ready=lambda address: say(f"ready: clients in browsers come in at {address}"))


def token(
    client: Annotated[str, typer.Argument(help="The client's id.", show_default=False)],
    tokens: Tokens = Path("tokens.json"),
    address: Annotated[
        str, typer.Option(help="Of the page, as the visitor reaches it.")
    ] = "http://127.0.0.1:8001/",
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Take a client's token back: it opens nothing any more.")
    ] = False,
) -> None:
    """Give a client in a browser its token: the link to send to it, once. The file keeps a digest alone.

    [bold]pflego deploy token ward-3 --address https://server.example.org:8443/visit/[/bold]
    """
    needs_flower()
    from pflego.deploy.gateway import tokens as known

    if revoke:
        known.revoke(tokens, client)
        say(f"the token of client {client} opens nothing any more")
        return
    if not _is_safe(address):
        raise SettingError(f"browsers compute over https, or on this machine alone: {address!r} is neither")
    say(f"{address if address.endswith('/') else address + '/'}#token={known.give(tokens, client)}")


def _is_safe(address: str) -> bool:
    """Tell whether a browser computes on a page of this address, and nobody on the way reads along."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    here = parts.hostname in ("127.0.0.1", "localhost", "::1")
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and here))


def needs_flower() -> None:
    """Refuse to deploy where Flower is not installed."""
    from importlib.util import find_spec

    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise MissingExtraError("for a deployment: pip install 'pflego[flower]'")
