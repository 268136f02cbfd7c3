"""Flower's own programs as processes on loopback. All that was started is ended, by its pid, whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

from typer.testing import CliRunner

from pflego.deploy.certificates import write_certificates, write_key

BIN = Path(sys.executable).parent
NGINX = Path(which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or "nginx")


def until(what: str, condition: Callable[[], object], *, seconds: float, every: float = 0.2) -> None:
    """Wait for something, but not for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not after {seconds:g} seconds"
        time.sleep(every)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def node_config(entries: Mapping[str, str | Path]) -> str:
    return " ".join(f'{name}="{value}"' for name, value in entries.items())


@dataclass
class Machines:
    """A server and its sites, each a few processes on this machine."""

    folder: Path
    port: int = field(default_factory=free_port)  # the SuperLink's, on loopback
    door: int = field(default_factory=free_port)  # the proxy's, which others reach
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        write_certificates(self.folder / "certs", ["localhost", "127.0.0.1"])
        home = self.folder / "flower"
        self.env = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
        }

    def start_server(self, app: Path) -> None:
        self._start(
            "server",
            "pflego", "deploy", "server", app, "--certs", self.folder / "certs", "--home", self.folder / "flower",
            "--port", str(self.port),
        )  # fmt: skip
        until("the server listens", lambda: self.listens(self.port), seconds=90)

    def start_proxy(self, app: Path) -> None:
        """Start nginx as the app says, with ports of this machine."""
        file = app / "nginx.conf"
        text = file.read_text().replace("listen 8443 ", f"listen {self.door} ")
        file.write_text(text.replace("127.0.0.1:8000;", f"127.0.0.1:{self.port};"))
        self._start("proxy", NGINX, "-p", self.folder, "-c", file, "-g", "daemon off;")
        until("the proxy listens", lambda: self.listens(self.door), seconds=30)

    def new_key(self, name: str) -> None:
        write_key(self.folder / "keys" / name)

    def register(self, name: str) -> None:
        self.new_key(name)
        self.flwr("supernode", "register", self.folder / "keys" / f"{name}.pub", "hub")

    def start_site(
        self,
        name: str,
        app: Path,
        config: Mapping[str, str | Path],
        port: int = 0,
        *,
        key: str | None = None,
        light: bool = False,
    ) -> None:
        self._start(
            name,
            "pflego", "deploy", "site", app, "--superlink", f"127.0.0.1:{self.door}",
            "--root-certificates", self.folder / "certs" / "ca.crt", "--key", self.folder / "keys" / (key or name),
            "--port", str(port), "--node-config", node_config(config), *(["--light"] if light else []),
        )  # fmt: skip

    def start_site_in_the_clear(self, name: str) -> None:
        self._start(
            name,
            "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.door}", "--port", str(free_port()),
            "--max-retries", "1",
        )  # fmt: skip

    def flwr(self, *words: str | Path) -> str:
        """Run one of the commands that a person gives."""
        status, told = self.try_flwr(*words)
        assert status == 0, told
        return told

    def try_flwr(self, *words: str | Path, home: Path | None = None) -> tuple[int, str]:
        """Run one of Flower's commands, with connections of one's own; give its status and what it said.

        It runs in this process: another one would spend seconds on its imports.
        """
        env = {**self.env, "FLWR_HOME": str(home or self.env["FLWR_HOME"]), "COLUMNS": "200"}
        with chdir(self.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Flower's own code is warned of
            from flwr.cli.app import app

            done = CliRunner().invoke(app, [str(word) for word in words], env=env)
        return done.exit_code, done.output

    def alive(self, name: str) -> bool:
        return self._running[name].poll() is None

    def ended_with(self, name: str, *, seconds: float) -> int:
        """How a process ended that was to end by itself."""
        return self._running[name].wait(timeout=seconds)

    def pids(self) -> list[int]:
        """All processes that were started, and those that they have started."""
        own = [process.pid for process in self._running.values() if process.poll() is None]
        return [pid for parent in own for pid in (parent, *_descendants(parent))]

    def pids_of(self, name: str) -> list[int]:
        """One of those that were started, and what it has started."""
        return [self._running[name].pid, *_descendants(self._running[name].pid)]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a program and those it started: as a power cut does. Parents go first, or they would start others."""
        process = self._running[name]
        pids = [process.pid, *reversed(_descendants(process.pid))]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=30)
        until(f"{name} is gone", lambda: not any(map(_lives, pids)), seconds=30)

    def kill_all(self) -> None:
        for name in self._running:
            self.kill(name)

    def listens(self, port: int) -> bool:
        assert all(self.alive(name) for name in ("server", "proxy") if name in self._running), self.log(
            "server"
        )
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _start(self, name: str, *command: str | Path) -> None:
        program, *options = command
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [BIN / program, *options], env=self.env, cwd=self.folder, stdout=log, stderr=log
            )


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    started = Machines(folder)
    try:
        yield started
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-5000:]}")
        raise
    finally:
        started.kill_all()


def _lives(pid: int) -> bool:
    """Tell whether a process is there and has not ended; whoever started it may not have noticed that yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _descendants(pid: int) -> Sequence[int]:
    """Those that a process has started, and they in turn, the youngest first."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found = [*_descendants(child), child, *found]
    return found
