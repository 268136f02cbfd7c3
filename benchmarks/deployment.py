"""Seconds of a federation across processes: `python -m benchmarks.deployment`; nginx must be installed.

Starts what operators start, all on this machine: server, proxy, and sites with 600 samples of 784 numbers each, under
TLS with node keys. Prints when what was reached, what a round takes, and how long which program computed; writes it
as JSON. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table
from tests.support.processes import Machines, machines

from benchmarks.rows import Row
from benchmarks.work import MLP, federation
from pflego.cli.kit import kit
from pflego.deploy.folder import write_app

_LONG = 600.0  # seconds for what should take a few
_TICK = os.sysconf("SC_CLK_TCK")
_PROGRAMS = {  # who a process is, by words of its command line
    "nginx": "nginx",
    "child superlink": "SuperLink",
    "child supernode": "SuperNodes",
    "flower.supernode": "SuperNodes",
    "pflego_light": "workers",
    "flower-superexec": "SuperExec",
    "flwr-serverapp": "ServerApp",
    "deploy site": "workers",
    "deploy server": "pflego deploy server",
    "flwr run": "flwr run",
}


@dataclass
class Watch:
    """Notes when what was reached, and which program has computed how long."""

    hub: Machines
    began: float = field(default_factory=time.monotonic)
    marks: dict[str, float] = field(default_factory=dict)
    _cpu: dict[tuple[str, int], float] = field(default_factory=dict)  # by program and process

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        """Wait for something; note when it was reached."""
        while not reached():
            assert time.monotonic() < self.began + _LONG, f"{what}: not after {_LONG:g} seconds"
            self._look()
            time.sleep(0.05)
        self.mark(what)

    def mark(self, what: str) -> None:
        """Note that something was reached."""
        self._look()
        self.marks[what] = time.monotonic() - self.began

    def cpu(self) -> Counter[str]:
        """Give the seconds that every program has computed up to now."""
        self._look()
        spent: Counter[str] = Counter()
        for (program, _), seconds in self._cpu.items():
            spent[program] += seconds  # type: ignore[assignment]
        return spent

    def _look(self) -> None:
        for pid in self.hub.pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                figures = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            program = next((name for said, name in _PROGRAMS.items() if said in words), "others")
            self._cpu[program, pid] = (int(figures[11]) + int(figures[12])) / _TICK


@dataclass(frozen=True)
class Measured:
    """What came of it, in seconds."""

    marks: dict[str, float]  # since the server was started
    rounds: list[float]  # of each after the first
    starting: dict[str, float]  # CPU, by program, up to the end of round 1
    a_round: dict[str, float]  # CPU, by program

    @property
    def rows(self) -> list[Row]:
        """What is aimed at."""
        last = self.marks["round 1 is done"]
        return [
            Row(
                "start of the sites to the end of round 1, s",
                last - self.marks["keys are registered"],
                "< 20",
            ),
            Row("start of the server to the end of round 1, s", last, "< 20"),
            Row("a round, s, median", median(self.rounds), "<= 4"),
        ]


def measure(folder: Path, *, sites: int, rounds: int, light: bool = False) -> Measured:
    """Let a federation train. light: with sites that do without torch."""
    app, out = folder / "trial", folder / "out"
    names = [f"site-{number}" for number in range(1, sites + 1)]
    write_app(
        app,
        {"steps": 50, "rounds": rounds, "evaluate_every": 0, "out": str(out), "members": ", ".join(names)},
    )
    for name, client in zip(names, federation(MLP, clients=sites, samples=600, classes=2), strict=True):
        np.savez(
            folder / f"{name}.npz",
            x_train=client.x_train, y_train=client.y_train, x_test=client.x_train[:60], y_test=client.y_train[:60],
        )  # fmt: skip

    agreed = folder / "kit" if light else app
    if light:
        kit(app, agreed, shape="784", dtype="float32")

    def done() -> int:
        file = out / "metrics.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    with machines(folder) as hub:
        watch = Watch(hub)
        hub.start_server(app)
        hub.start_proxy(app)
        watch.mark("the server listens")
        for name in names:
            hub.register(name)
        watch.mark("keys are registered")
        for name in names:
            data, state = folder / f"{name}.npz", folder / name
            config: dict[str, str | Path] = {"client-id": name, "data": data, "state": state}
            hub.start_site(name, agreed, config if light else {**config, "device": "cpu"}, light=light)
        watch.wait("sites have tried a round", lambda: all("ready" in hub.log(name) for name in names))
        watch.wait("sites are connected", lambda: all("SuperNode ID" in hub.log(name) for name in names))
        watch.wait("sites have said who they are", (out / "federation.json").exists)
        watch.wait("round 1 is done", lambda: done() >= 1)
        starting, first = watch.cpu(), watch.marks["round 1 is done"]
        ends = [first]
        for number in range(2, rounds):  # everybody is evaluated after the last
            watch.wait("the last but one is done", lambda number=number: done() >= number)  # type: ignore[misc]
            ends.append(watch.marks["the last but one is done"])
        spent = watch.cpu()
    return Measured(
        watch.marks,
        [later - earlier for earlier, later in pairwise(ends)],
        dict(starting),
        {program: (seconds - starting[program]) / (len(ends) - 1) for program, seconds in spent.items()},
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deployment", description=__doc__)
    parser.add_argument("--sites", type=int, default=3, help="how many")
    parser.add_argument("--rounds", type=int, default=20, help="how many")
    parser.add_argument("--light", action="store_true", help="sites without torch")
    parser.add_argument("--out", type=Path, default=Path("deployment.json"), help="where to write the JSON")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with TemporaryDirectory() as folder:
        found = measure(Path(folder), sites=arguments.sites, rounds=arguments.rounds, light=arguments.light)
    console = Console()
    for name, seconds in found.marks.items():
        console.print(f"{seconds:6.1f} s  {name}", highlight=False)
    cpu = Table("CPU seconds, all processes of a kind", "up to round 1", "a round")
    for program, seconds in sorted(found.starting.items(), key=lambda entry: -entry[1]):
        cpu.add_row(program, f"{seconds:.1f}", f"{found.a_round.get(program, 0.0):.2f}")
    console.print(cpu)
    for row in found.rows:
        console.print(
            f"{row.name}: {row.measured:.1f} ({row.reach}: {'reached' if row.reached else 'missed'})"
        )
    record = {"sites": arguments.sites, "light": arguments.light, "load before": load, **asdict(found)}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
