"""A site's one command: a SuperNode, and a worker that keeps torch loaded and runs nothing but what is installed."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING

from pflego.deploy.flower.child import SETTINGS, begin, child
from pflego.errors import FolderError, SettingError, UserError
from pflego.files import write_atomically

if TYPE_CHECKING:
    from pflego.deploy.inspection import Inspection


def accepting(app: Path, node_config: str) -> str:
    """Add to a node config that the operator accepts an app: its method, model and settings, and no others."""
    from pflego.deploy.node_config import read_node_config

    if "accepts" in read_node_config(node_config):
        return node_config
    if '"' in str(app.resolve()):
        raise SettingError(f"the folder {app} has a quotation mark in its name: rename it")
    return f'{node_config} accepts="{app.resolve()}"'


def signing(key: Path, node_config: str) -> str:
    """Add to a node config which key the site signs with, if it names none."""
    from pflego.deploy.node_config import read_node_config

    if "identity" in read_node_config(node_config):
        return node_config
    if '"' in str(key.resolve()):
        raise SettingError(f"the key {key} has a quotation mark in its name: rename it")
    return f'{node_config} identity="{key.resolve()}"'


def check_files(key: Path, root_certificates: Path) -> None:
    """Refuse files that are not there, and a key that is no secret."""
    for path, what in ((key, "the site's key"), (root_certificates, "the authority's certificate")):
        if not path.is_file():
            raise FolderError(f"{path} is not there: name {what}")
    if key.stat().st_mode & 0o077:
        raise FolderError(f"{key} can be read by others than its owner: chmod 600 {key}")


def run(
    app: Path,
    node_config: str,
    *,
    superlink: str,
    key: Path,
    root_certificates: Path,
    port: int,
    poll: float,
    ready: Callable[[Inspection], None],
) -> None:
    """Take part until the SuperNode ends, which is an error: it is meant to stay.

    A round's work is done here before the SuperNode begins: all that can fail fails before anybody is told of it.

    ready: is told what will leave in a round.
    """
    check_files(key, root_certificates)
    os.environ.update(SETTINGS)  # Flower reads it when it is imported, which begins with the next line
    address, secret, agreed = (
        f"127.0.0.1:{port or _free_port()}",
        token_bytes(32),
        signing(key, accepting(app, node_config)),
    )
    options = [
        "--superlink", superlink, "--root-certificates", str(root_certificates),
        "--auth-supernode-private-key", str(key), "--isolation", "process", "--host", "127.0.0.1",
        "--port", address.partition(":")[2], "--node-config", agreed,
    ]  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the SuperNode is ended too
    with tempfile.TemporaryDirectory(prefix="pflego-") as folder:
        file = Path(folder) / "secret"
        write_atomically(file, secret, private=True)
        with child("supernode", [*options, "--superexec-auth-secret-file", str(file)], poll=poll) as node:
            from pflego.deploy.flower.worker import work  # loads torch, while Flower is loaded beside this
            from pflego.deploy.inspection import inspect

            ready(inspect(app, agreed))
            begin(node)
            work(address, secret, while_true=lambda: node.poll() is None)
    raise UserError(f"the SuperNode ended with status {node.returncode}: what it said stands above")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
