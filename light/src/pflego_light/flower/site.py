"""A light site's one command: a SuperNode, and a worker that answers by a kit."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from secrets import token_bytes

from pflego_light.desk import Desk
from pflego_light.errors import FolderError, LightError, SettingError
from pflego_light.files import write_atomically
from pflego_light.flower.supernode import SETTINGS, begin, supernode
from pflego_light.kit import Kit
from pflego_light.terms import Site


def run(
    folder: Path,
    node_config: str,
    *,
    superlink: str,
    key: Path,
    root_certificates: Path,
    port: int = 0,
    poll: float = 0.5,
    threads: int = 1,
    ready: Callable[[Desk], None] = lambda desk: None,
) -> None:
    """Take part until the SuperNode ends, which is an error: it is meant to stay.

    Kit and data are read before the SuperNode begins: all that can fail fails before anybody is told of it.
    """
    for path, what in ((key, "the site's key"), (root_certificates, "the authority's certificate")):
        if not path.is_file():
            raise FolderError(f"{path} is not there: name {what}")
    if key.stat().st_mode & 0o077:
        raise FolderError(f"{key} can be read by others than its owner: chmod 600 {key}")
    os.environ.update(SETTINGS)  # Flower reads it when it is imported
    address, secret = f"127.0.0.1:{port or _free_port()}", token_bytes(32)
    options = [
        "--superlink", superlink, "--root-certificates", str(root_certificates),
        "--auth-supernode-private-key", str(key), "--isolation", "process", "--host", "127.0.0.1",
        "--port", address.partition(":")[2], "--node-config", node_config,
    ]  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the SuperNode is ended too
    with tempfile.TemporaryDirectory(prefix="pflego-") as temporary:
        file = Path(temporary) / "secret"
        write_atomically(file, secret)
        with supernode([*options, "--superexec-auth-secret-file", str(file)], poll=poll) as node:
            from pflego_light.flower.worker import work  # while Flower is loaded beside this

            kit = Kit.read(folder, threads=threads)
            desk = Desk(kit, Site.read(read_node_config(node_config)))
            desk.facts()
            ready(desk)
            begin(node)
            work(kit, address, secret, while_true=lambda: node.poll() is None)
    raise LightError(f"the SuperNode ended with status {node.returncode}: what it said stands above")


def read_node_config(text: str) -> dict[str, bool | float | int | str]:
    """Read name=value pairs."""
    import click
    from flwr.common.config import parse_config_args

    try:
        return parse_config_args([text])
    except (click.ClickException, ValueError) as error:
        raise SettingError(
            f"cannot read the node config {text!r}: write name=value pairs with texts in quotes, "
            f'\'client-id="ward-3" data="own.npz" state="state"\''
        ) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
