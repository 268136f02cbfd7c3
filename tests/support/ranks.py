"""What each of several processes does for test_distributed.py: one case after the other, with notes of them all.

torchrun --nproc-per-node 2 -m tests.support.ranks FOLDER CASES
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

import pflego
from pflego import files
from pflego.cli import app
from pflego.codec import Facts
from pflego.federation.draws import cohort
from pflego.federation.participation import participation_of
from pflego.federation.roster import ClientId
from pflego.learning.evaluation import Row
from pflego.runs import server_files, state_files
from pflego.runs.history import Evaluations, HistoryRow
from pflego.runs.run import Run
from pflego.runs.states import States
from pflego.weights import Weights
from tests.support.crowd import Exponential, crowd
from tests.support.own_parts import (
    Answering,
    Damped,
    Loudest,
    Measuring,
    Neighbours,
    TwoExchanges,
    scalar_federation,
    scalar_model,
)
from tests.support.reference import world

T = TypeVar("T")

ROUNDS = 4


@dataclass
class Case:
    """A way to train that gives the same in one process and in two."""

    algorithm: pflego.Algorithm
    options: dict[str, object] = field(default_factory=dict)
    federation: Callable[[], pflego.Federation] = lambda: world(clients=7).federation
    model: Callable[[], pflego.Model] = lambda: world().model

    def train(self, **options: object) -> Run:
        settings = {"rounds": ROUNDS, "participation": 3, "evaluate_every": 0, **self.options, **options}
        return pflego.train(self.federation(), self.model(), self.algorithm, **settings)  # type: ignore[arg-type]

    def cohort(self, number: int) -> list[int]:
        """Say who takes part in a round: three clients, unless the case says otherwise."""
        return cohort(participation_of(self.options.get("participation", 3)), range(7), seed=0, number=number)

    def open(self, folder: Path) -> Run:
        return pflego.open_run(
            folder, federation=self.federation(), model=self.model(), algorithm=self.algorithm
        )


def exponential() -> pflego.Model:
    torch.manual_seed(0)
    return pflego.Model(nn.Sequential(nn.Linear(6, 4), Exponential()).double(), features=4)


LOSSY: dict[str, object] = {"dropout": 0.3, "deadline": 0.1, "participation": 6}
CASES = {
    "pflego": Case(pflego.PFLEGO(steps=5)),
    "common head": Case(pflego.PFLEGO(steps=5, common_head=True), {"participation": pflego.Binomial(0.5)}),
    "fedavg": Case(pflego.FedAvg(steps=5, labels="global")),
    "ditto": Case(pflego.Ditto(steps=3)),
    "fedrecon": Case(pflego.FedRecon(steps=5), {"participation": pflego.Binomial(0.3)}),
    "fedbabu": Case(pflego.FedBabu(steps=3)),  # sends only a part of the shared weights
    "fedrep": Case(pflego.FedRep(steps=8)),
    "fedpac": Case(pflego.FedPAC(steps=6, client_lr=0.1, body_steps=2)),  # its server sees each contribution
    "local": Case(pflego.Local(steps=3)),
    # beside sums, the largest of what clients measure
    "auto": Case(pflego.PFLEGO(steps=3, server_lr="auto", server_optimizer="sgd")),
    "one client": Case(pflego.PFLEGO(steps=3), {"participation": 1}),
    "lossy": Case(pflego.PFLEGO(steps=3), LOSSY),
    "renormalise": Case(pflego.PFLEGO(steps=3), {**LOSSY, "missing": "renormalise"}),
    "renormalise, all arrive": Case(pflego.PFLEGO(steps=3), {"missing": "renormalise"}),
    "regression": Case(pflego.PFLEGO(steps=3), {}, lambda: world(clients=7, regression=True).federation),
    "rejected": Case(
        pflego.PFLEGO(steps=2),
        {"participation": pflego.Everyone()},
        lambda: crowd(broken=7),
        exponential,
    ),
    "own metrics": Case(Measuring(steps=3)),
    "median": Case(pflego.FedPer(steps=3), {"aggregation": pflego.Median()}),
    "median, auto, lossy": Case(
        pflego.PFLEGO(steps=3, server_lr="auto", server_optimizer="sgd"),
        {**LOSSY, "aggregation": pflego.Median(), "missing": "renormalise"},
    ),
    "own rule": Case(pflego.FedAvg(steps=3), {"aggregation": Loudest()}),
    "own rule for sums": Case(pflego.FedAvg(steps=3), {"aggregation": Damped()}),
    "clipped": Case(pflego.PFLEGO(steps=3), {"transforms": [pflego.Clip(0.01)]}),
    "quantised": Case(pflego.PFLEGO(steps=3), {"compression": pflego.Quantise(4)}),
    "feedback, lossy": Case(pflego.FedAvg(steps=3, client_lr=0.1), {**LOSSY, "compression": pflego.Top(0.2)}),
    "liars": Case(pflego.PFLEGO(steps=3), {"liars": "samples+noise@0.4"}),
    "equal weights": Case(pflego.FedAvg(steps=3, client_lr=0.1), {**LOSSY, "weighting": "equal"}),
    "private": Case(
        pflego.PFLEGO(steps=3),
        {
            **LOSSY,
            "participation": pflego.Binomial(0.4),
            "weighting": "equal",
            "privacy": pflego.ClientPrivacy(clip=0.05, noise=1.0, delta=1e-3, quantile=0.5),
        },
    ),
    "private, nobody": Case(
        pflego.FedBabu(steps=3),
        {
            "participation": pflego.Binomial(0.05),
            "weighting": "equal",
            "privacy": pflego.ClientPrivacy(clip=0.05, noise=1.0, delta=1e-3),
        },
    ),
    "own participation": Case(pflego.PFLEGO(steps=3), {"participation": Neighbours()}),
    "independent, inverse": Case(
        pflego.PFLEGO(steps=3, server_lr="auto", server_optimizer="sgd"),
        {
            "participation": pflego.Independent({f"c{i}": 0.2 + 0.1 * i for i in range(7)}),
            "dropout": 0.3,
            "missing": "inverse",
        },
    ),
    "population": Case(
        pflego.PFLEGO(steps=3),
        {"population": pflego.Population(join={"c2": 3, "c5": 2, "c0": 4}, leave={"c6": 3, "c0": 2})},
    ),
    "agnostic": Case(pflego.PFLEGO(steps=3), {**LOSSY, "objective": pflego.Agnostic(0.1)}),
    "cvar, auto": Case(
        pflego.PFLEGO(steps=3, server_lr="auto", server_optimizer="sgd"), {"objective": pflego.CVaR(0.4, 0.3)}
    ),
    "two exchanges": Case(TwoExchanges(), {"participation": 2}, scalar_federation, scalar_model),
    "answers": Case(Answering(), {"participation": 3}, scalar_federation, scalar_model),
}
# the run that is killed in the middle, and once is not
LONG = Case(pflego.PFLEGO(steps=20), {"rounds": 60, "evaluate_every": 7, "resume": True})


@dataclass
class Notes:
    """What a process has to say of a run."""

    shared: Weights
    held: dict[ClientId, Weights]  # the states in its memory
    history: list[HistoryRow]
    evaluations: Evaluations
    calls: Counter[str]


@dataclass
class FolderNotes:
    """What it has to say of a run with a folder."""

    states: dict[ClientId, Weights]  # of everybody
    held: set[ClientId]
    evaluated: list[Row]
    heard: list[int]  # the rounds that its callbacks heard of
    written: list[tuple[str, float, float]]  # files, with the times when their writing began and ended


class Listener(pflego.Callback):
    def __init__(self) -> None:
        self.rounds: list[int] = []

    def on_round(self, run: Run, row: HistoryRow) -> None:
        self.rounds.append(int(row["round"] or 0))
        run.evaluate()  # needs no other process, so it can be asked of one


def main(folder: Path, names: Sequence[str]) -> None:
    """Do these cases and everything else, and note it."""
    rank = int(os.environ["RANK"])
    calls, written = count_calls(), time_files()
    notes: dict[str, object] = {}
    for name in names:
        calls.clear()
        run = CASES[name].train(engine="distributed")
        assert isinstance(run.states, States)
        notes[name] = Notes(run.shared, run.states._held, run.history, run.evaluations, calls.copy())

    for where in ("memory", "disk"):
        listener = Listener()
        written.clear()
        run = CASES["pflego"].train(
            engine="distributed", out=folder / where, states=where, callbacks=[listener]
        )
        assert isinstance(run.states, States)
        notes[f"folder, {where}"] = FolderNotes(
            {client: run.states[client] for client in run.states},
            set(run.states._held),
            run.evaluate(),
            listener.rounds,
            list(written),
        )

    notes["printed"] = printed(folder)
    LONG.train(engine="distributed", out=folder / "whole")

    notes["other seed"] = error(lambda: CASES["pflego"].train(engine="distributed", seed=rank))
    notes["other weights"] = error(
        lambda: Case(pflego.PFLEGO(), model=lambda: world(seed=rank).model).train(engine="distributed")
    )
    notes["broken client"] = error(
        lambda: Case(pflego.PFLEGO(), federation=with_a_broken_client).train(engine="distributed")
    )
    run = CASES["pflego"].train(engine="distributed")
    notes["state elsewhere"] = {
        client: error(partial(run.states.__getitem__, client)) for client in run.states
    }
    (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(notes))


def train_long(rank: int, port: int, out: Path) -> None:
    """Be one of the two processes of the long run, without torchrun."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    LONG.train(engine="distributed", out=out)


def printed(folder: Path) -> str:
    """What the command line says of a run on the data there, whose folder it chooses itself."""
    command = ["run", "--engine", "distributed", "--data", "own.npz", "--clients", "3", "--rounds", "2"]
    with chdir(folder), redirect_stdout(StringIO()) as text, redirect_stderr(text):
        app(command, standalone_mode=False)
    return text.getvalue()


def with_a_broken_client() -> pflego.Federation:
    good = world().federation
    load = partial(load_but_c2, good)
    return pflego.Federation.lazy(list(good.ids), load, sizes=good.sizes, classes=good.classes)


def load_but_c2(good: pflego.Federation, client: ClientId) -> pflego.Client:
    if client == "c2":
        raise pflego.UserError("c2 cannot be read")
    return good.client(client)


def error(work: Callable[[], object]) -> str | None:
    """What goes wrong, in words."""
    try:
        work()
    except pflego.UserError as wrong:
        return str(wrong)
    return None


def count_calls() -> Counter[str]:
    """Count what goes over the wire from now on."""
    calls: Counter[str] = Counter()
    for name in ["all_reduce", "all_gather_object"]:
        original = getattr(dist, name)

        def counted(*args: object, name: str = name, original: Callable[..., T] = original) -> T:
            calls[name] += 1
            return original(*args)

        setattr(dist, name, counted)
    return calls


def time_files() -> list[tuple[str, float, float]]:
    """Note when files of tensors are written from now on."""
    written: list[tuple[str, float, float]] = []
    original = files.write_tensors

    def timed(path: Path, tensors: Weights, facts: Facts, *, private: bool = False) -> str:
        began = time.monotonic()
        stamp = original(path, tensors, facts, private=private)
        written.append((path.name, began, time.monotonic()))
        return stamp

    for module in (server_files, state_files):
        vars(module)["write_tensors"] = timed
    return written


if __name__ == "__main__":
    from tests.support import ranks  # by its own name, so that others can read the notes

    ranks.main(Path(sys.argv[1]), sys.argv[2:])
