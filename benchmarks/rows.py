"""The rows of the table: a function each, which gives the ratios it measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pflego
from benchmarks import rivals
from benchmarks.long_run import LongRun
from benchmarks.work import (
    CIFAR,
    MLP,
    OMNIGLOT,
    Work,
    fastest,
    federation,
    model,
    pass_behind_trunk,
    plain_batches,
    plain_epochs,
    plain_loop,
    plain_pass,
    population,
    ratios,
    rounds,
    timed,
)
from pflego.learning.heads.linear import plain_loops

_FEW = 3  # pairs of what takes long, and scatters little


@dataclass(frozen=True)
class Row:
    """A ratio, or another number, and where it should be."""

    name: str
    measured: float | None
    reach: str  # "<= 2.0"
    note: str = ""
    low: float | None = None  # the range of several
    high: float | None = None
    pairs: int | None = None

    @classmethod
    def of(cls, name: str, found: Sequence[float], reach: str, note: str = "") -> Row:
        """Make a row of several measurements: their median and their range."""
        return cls(name, median(found), reach, note, min(found), max(found), len(found))

    @property
    def reached(self) -> bool | None:
        """Whether it is where it should be; None if it could not be measured."""
        if self.measured is None:
            return None
        relation, limit = self.reach.split()
        return self.measured <= float(limit) if relation in ("<=", "<") else self.measured >= float(limit)


def pflego_against_a_pass(repeats: int) -> list[Row]:
    """A PFLEGO round, tau = 50, against the fastest plain pass over the same data."""
    rows = []
    for name, shape, clients, samples, classes, limit in [
        ("MLP, 20 x 600, K = 10", MLP, 20, 600, 10, 1.6),
        ("MLP, 20 x 600, K = 2", MLP, 20, 600, 2, 1.2),
        ("CIFAR-10 net, 4 x 500, K = 5", CIFAR, 4, 500, 5, 1.1),
        ("Omniglot net, 2 x 1,948, K = 32", OMNIGLOT, 2, 1948, 32, 1.1),
    ]:
        fed = federation(shape, clients=clients, samples=samples, classes=classes)
        batches = [None, clients * samples] if shape is MLP else [32, 64, 128]
        floor = fastest([plain_pass(fed, shape=shape, batch=batch) for batch in batches])
        own = rounds(fed, pflego.PFLEGO(steps=50), shape=shape, number=3 if shape is MLP else 1)
        found = ratios(own, floor, repeats if shape is MLP else min(repeats, _FEW))
        rows.append(Row.of(f"PFLEGO round / one plain pass: {name}", found, f"<= {limit}"))
    return rows


def frozen_trunk(repeats: int) -> list[Row]:
    """A PFLEGO round behind a frozen trunk against a plain pass over the part that is trained."""
    dense = "8, 10"  # the CIFAR-10 net's dense layers, behind its convolutions
    fed = federation(CIFAR, clients=4, samples=500, classes=5)
    floor = fastest(
        [pass_behind_trunk(fed, shape=CIFAR, trained=dense, batch=batch) for batch in (None, 2000)]
    )
    own = rounds(fed, pflego.PFLEGO(steps=50), shape=CIFAR, number=5, trained=dense)
    name = "a frozen trunk: PFLEGO round / one pass over the trained part: CIFAR-10 net, 4 x 500"
    return [Row.of(name, ratios(own, floor, repeats), "<= 1.15")]


def without_numba(repeats: int) -> list[Row]:
    """A PFLEGO round by PyTorch's own operations against the compiled loops."""
    rows = []
    for classes in (10, 2):
        own = rounds(federation(clients=20, samples=600, classes=classes), pflego.PFLEGO(steps=50))
        found = ratios(_plainly(own), own, min(repeats, 5))
        rows.append(
            Row.of(f"PFLEGO round without numba / with it: MLP, 20 x 600, K = {classes}", found, "<= 1.2")
        )
    small = rounds(federation(clients=1000, samples=20, classes=2), pflego.PFLEGO(steps=50))
    found = ratios(_plainly(small), small, _FEW)
    return [*rows, Row.of("PFLEGO round without numba / with it: MLP, 1,000 x 20, K = 2", found, "<= 1.2")]


def _plainly(work: Work) -> Work:
    def plain() -> float:
        with plain_loops():
            return work()

    return plain


def more_steps(repeats: int) -> list[Row]:
    """tau = 100 against tau = 2."""
    fed = federation(CIFAR, clients=4, samples=500, classes=5)
    many, few = (rounds(fed, pflego.PFLEGO(steps=tau), shape=CIFAR, number=1) for tau in (100, 2))
    found = ratios(many, few, min(repeats, _FEW))
    return [Row.of("PFLEGO, tau 100 / tau 2: CIFAR-10 net", found, "<= 1.1")]


def fedavg_against_pflego(repeats: int) -> list[Row]:
    """FedAvg's 50 full passes against a PFLEGO round."""
    fed = federation(clients=20, samples=600, classes=2)
    fedavg, own = (
        rounds(fed, pflego.FedAvg(steps=50, client_lr=0.007), number=1),
        rounds(fed, pflego.PFLEGO(steps=50)),
    )
    found = ratios(fedavg, own, min(repeats, 5))
    name = "FedAvg round by plain passes / PFLEGO round: MLP, K = 2, tau = 50"
    return [Row.of(name, found, ">= 30")]


def fedavg_with_gram(repeats: int) -> list[Row]:
    """FedAvg's steps in the span of the samples against the same steps taken plainly."""
    fed = federation(clients=20, samples=600, classes=10)
    gram, plain = (
        rounds(fed, pflego.FedAvg(steps=50, client_lr=0.007), number=1, speedup=s) for s in ("auto", "none")
    )
    found = ratios(gram, plain, min(repeats, 5))
    return [Row.of("FedAvg, as it is / by plain passes: MLP, 20 x 600, 50 steps", found, "<= 0.6")]


def fedavg_elsewhere(repeats: int) -> list[Row]:
    """FedAvg here against FedAvg in other frameworks, by full batches and by mini-batches."""
    works = [("MLP, 50 steps", 600, 600, 50, "<= 0.7"), ("MLP, batches of 32", 640, 32, 1, "<= 1.0")]
    return [
        _elsewhere(f"FedAvg round here / in {name}: {work}", name, samples, batch, epochs, limit, repeats)
        for work, samples, batch, epochs, limit in works
        for name in rivals.RIVALS
    ]


def _elsewhere(title: str, name: str, samples: int, batch: int, epochs: int, limit: str, repeats: int) -> Row:
    """Set a rival up, if it must be, and measure a round of twenty clients there and here."""
    method = pflego.FedAvg(epochs=epochs, batch_size=batch if batch < samples else None, client_lr=0.007)
    fed = federation(clients=20, samples=samples, classes=10)
    here = rounds(fed, method, number=3, speedup="auto")  # at our defaults

    def there() -> float:
        return median(
            rivals.seconds_a_round(
                name, clients=20, samples=samples, classes=10, batch=batch, epochs=epochs, rounds=3
            )
        )

    try:
        return Row.of(title, [here() / there() for _ in range(min(repeats, 2))], limit)
    except rivals.Unavailable as error:
        return Row(title, None, limit, str(error).splitlines()[-1])


def convolutional_fedavg(repeats: int) -> list[Row]:
    """FedAvg's client work on images against a plain PyTorch loop."""
    fed = federation(CIFAR, clients=2, samples=500, classes=5)
    here = rounds(fed, pflego.FedAvg(steps=2, client_lr=0.007), shape=CIFAR, number=1)
    there = plain_loop(fed, shape=CIFAR, steps=2)
    name = "FedAvg here / a plain PyTorch loop: CIFAR-10 net, 500 a client"
    return [Row.of(name, ratios(here, there, min(repeats, _FEW)), "<= 0.4")]


def mini_batches(repeats: int) -> list[Row]:
    """FedAvg by mini-batches of 32 against a plain PyTorch loop."""
    rows = []
    for name, shape, clients, samples in [
        ("MLP, 20 x 600", MLP, 20, 600),
        ("CIFAR-10 net, 2 x 500", CIFAR, 2, 500),
    ]:
        fed = federation(shape, clients=clients, samples=samples, classes=10)
        method = pflego.FedAvg(epochs=1, batch_size=32, client_lr=0.01)
        here = rounds(fed, method, shape=shape, number=1)
        there = plain_epochs(fed, shape=shape, batch=32, epochs=1)
        found = ratios(here, there, repeats if shape is MLP else min(repeats, _FEW))
        rows.append(Row.of(f"FedAvg, batches of 32 / a plain PyTorch loop: {name}", found, "<= 1.0"))
    return rows


def many_small_clients(repeats: int) -> list[Row]:
    """A thousand participants of 20 samples against ten of 2,000."""
    small, large = (
        rounds(federation(clients=clients, samples=20_000 // clients, classes=2), pflego.PFLEGO(steps=50))
        for clients in (1000, 10)
    )
    found = ratios(small, large, repeats)
    return [Row.of("PFLEGO, 1,000 x 20 samples / 10 x 2,000: MLP, K = 2", found, "<= 1.5")]


def large_cohort(repeats: int) -> list[Row]:
    """Ten thousand participants of 20 samples out of a million clients, all of a round, against a plain pass."""
    fed = population(1_000_000, samples=20, pool=20_000)
    own = rounds(fed, pflego.PFLEGO(steps=50), participation=10_000, number=2, whole=True)
    floor = fastest([plain_batches(200_000, batch=batch) for batch in (500, 2000, 20_000)])
    name = "PFLEGO, 10,000 x 20 samples out of 1,000,000 clients / one plain pass: MLP, K = 2"
    return [Row.of(name, ratios(own, floor, min(repeats, _FEW)), "<= 3")]


def long_run(repeats: int) -> list[Row]:
    """Opening a run of 5,000 rounds and 1,000 clients, going on with it, and the size of its folder."""
    with TemporaryDirectory() as folder:
        short, long = (LongRun(Path(folder) / str(n), rounds=n, clients=1000) for n in (500, 5000))
        opened, resumed = (
            [_seconds(action) for _ in range(min(repeats, _FEW))] for action in (long.open, long.resume)
        )
        what = "a run of 5,000 rounds and 1,000 clients"
        return [
            Row.of(f"opening {what}, s", opened, "<= 2"),
            Row.of(f"resuming {what}, s", resumed, "<= 2"),
            Row(f"checkpoint of {what} / of 500 rounds, bytes", long.bytes() / short.bytes(), "<= 1.2"),
            Row(f"history of {what}, MB", long.history_bytes() / 1e6, "<= 10"),
        ]


def evaluation(repeats: int) -> list[Row]:
    """What evaluating everyone takes of a run."""
    fed = federation(clients=1000, samples=20, classes=2, tests=10)

    def seconds(every: int) -> Work:
        def train() -> None:
            pflego.train(
                fed, model(), pflego.PFLEGO(steps=50), rounds=21, participation=20, evaluate_every=every
            )

        return timed(train)

    found = [1 - one for one in ratios(seconds(21), seconds(10), min(repeats, 5))]
    name = "evaluation of all 1,000 clients every 10 rounds of 20, as a share of a run: MLP, 20 + 10 samples"
    return [Row.of(name, found, "<= 0.5")]


def large_population(repeats: int) -> list[Row]:
    """Twenty participants a round out of a million clients, and out of a hundred."""
    large, small = (
        rounds(population(clients), pflego.PFLEGO(steps=50), participation=20, number=5)
        for clients in (1_000_000, 100)
    )
    code = """
import pflego, re
from benchmarks.work import population, rounds
rounds(population(1_000_000), pflego.PFLEGO(steps=50), participation=20, number=5)()
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""
    memory, note = None, "only where there is /proc"
    if Path("/proc/self/status").exists():
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        memory, note = int(done.stdout) * 1024 / 1e9, ""
    return [
        Row.of("a population of 1,000,000 / of 100: 20 a round", ratios(large, small, repeats), "<= 1.1"),
        Row("a process with 1,000,000 clients, GB of memory at its peak", memory, "< 2", note),
    ]


def start(repeats: int) -> list[Row]:
    """Seconds until Python has the package, and the command line its help."""
    commands = {
        "import pflego, s": [sys.executable, "-c", "import pflego"],
        "pflego --help, s": [sys.executable, "-m", "pflego", "--help"],
    }
    return [
        Row.of(name, [_seconds_of(command) for _ in range(repeats)], "< 0.5")
        for name, command in commands.items()
    ]


ROWS: list[Callable[[int], list[Row]]] = [
    pflego_against_a_pass,
    frozen_trunk,
    more_steps,
    fedavg_against_pflego,
    fedavg_with_gram,
    convolutional_fedavg,
    mini_batches,
    many_small_clients,
    large_cohort,
    large_population,
    without_numba,
    evaluation,
    long_run,
    start,
    fedavg_elsewhere,
]


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _seconds_of(command: list[str]) -> float:
    return _seconds(lambda: subprocess.run(command, check=True, capture_output=True, env=os.environ))
