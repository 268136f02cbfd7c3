"""The server's one command: a SuperLink that nobody reaches from outside, and a run that goes on after a restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from pflego.deploy.flower.child import SETTINGS, begin, child
from pflego.errors import FolderError, UserError
from pflego.files import make_folder, write_atomically

CONNECTION = "hub"  # what the commands of `flwr` call this server
_STARTING = 120.0  # seconds that a SuperLink may take to listen


def run(app: Path, *, certs: Path, home: Path, port: int) -> None:
    """Serve, and train or go on training, until this process is ended.

    home: where Flower's database and the connection of the `flwr` commands are kept.
    """
    names = [certs / name for name in ("ca.crt", "server.pem", "server.key")]
    for path in names:
        if not path.is_file():
            raise FolderError(f"{path} is not there: pflego deploy certs {certs} --host NAME makes it")
    authority, certificate, key = (str(path.resolve()) for path in names)
    options = [
        "--ssl-ca-certfile", authority, "--ssl-certfile", certificate, "--ssl-keyfile", key,
        "--enable-supernode-auth", "--disable-runtime-dependency-installation",
        "--database", str(home / "flower.db"), "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the SuperLink is ended too
    with child("superlink", options, FLWR_HOME=str(home.resolve())) as superlink:
        _check(app)
        make_folder(home, private=True)
        connection = f'address = "127.0.0.1:{port}"\nroot-certificates = "{authority}"\n'
        write_atomically(
            home / "config.toml", f"[superlink.{CONNECTION}]\n{connection}".encode(), private=True
        )
        begin(superlink)
        _wait(superlink, port)
        _start(app, home)
        superlink.wait()
    raise UserError(f"the SuperLink ended with status {superlink.returncode}: what it said stands above")


def _check(app: Path) -> None:
    """Refuse settings that make no sense."""
    from pflego.deploy.flower.app_config import AppConfig  # loads torch, while Flower is loaded beside this
    from pflego.deploy.flower.terms import run_config

    given = run_config(app)
    config = AppConfig.read(given)
    if config.deployment.gateway.port:
        from pflego.deploy.gateway.opening import furnished

        furnished(config, given)


def _wait(superlink: subprocess.Popen[bytes], port: int) -> None:
    """Wait until it listens."""
    end = time.monotonic() + _STARTING
    while superlink.poll() is None and time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise UserError(f"the SuperLink does not listen on port {port}: what it said stands above")


def _start(app: Path, home: Path) -> None:
    """Start the run, or go on with it: the folder that it writes to says which."""
    program = [str(Path(sys.executable).with_name("flwr")), "run", str(app.resolve()), CONNECTION]
    environment = {**os.environ, **SETTINGS, "FLWR_HOME": str(home.resolve())}
    if subprocess.run(program, env=environment, cwd=home, check=False).returncode:
        raise UserError("the run could not be started: what Flower said stands above")
