"""Client work on a Ray cluster, by Flower's simulation engine.

Ray carries the federation to every worker once. In a round each worker gets its share of the cohort, with the states
that its clients have kept, and gives back what came of it: the outcomes that the cohort would have had in this process.
States stay with the run, so checkpoints, resuming and everything after training are what they are without a cluster.

What is pickled here is read by processes of the same run alone.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from queue import Queue
from threading import Event, Thread
from types import ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from pflego.engines.base import Gathered, Turn, Work
from pflego.engines.local import LocalEngine
from pflego.errors import UserError
from pflego.federation.roster import ClientId
from pflego.learning.evaluation import Score
from pflego.weights import Weights, to

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.serverapp import Grid

T = TypeVar("T")

_POLL = 0.01  # seconds between two looks for replies
_QUIET = {  # neither Flower nor Ray tells anybody of a simulation, unless the user wants it
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray warns of otherwise
}


@dataclass(frozen=True)
class Task(ABC, Generic[T]):
    """What a worker is asked to do with some clients."""

    common: bytes  # where Ray keeps what all work has in common
    shared: Weights
    positions: Sequence[int]
    states: Mapping[ClientId, Weights]

    def do(self) -> list[T]:
        """Do it, as it would be done in one process."""
        engine = replace(_common(self.common), states=self.states)
        return self.ask(engine, to(self.shared, engine.problems.device))

    @abstractmethod
    def ask(self, engine: LocalEngine, shared: Weights) -> list[T]:
        """Ask an engine that has the clients."""


@dataclass(frozen=True)
class Part(Task[Work]):
    """A part of a round's cohort."""

    turns: Sequence[Turn]

    def ask(self, engine: LocalEngine, shared: Weights) -> list[Work]:
        """Let the clients do their work."""
        return [engine.run(self.turns, shared)]


@dataclass(frozen=True)
class Trial(Task[Score]):
    """A part of everyone, to be evaluated."""

    adapt: bool

    def ask(self, engine: LocalEngine, shared: Weights) -> list[Score]:
        """Try their models on their own test data."""
        return engine.scores(shared, adapt=self.adapt, only=self.positions)


@lru_cache(maxsize=1)
def _common(place: bytes) -> LocalEngine:
    """Fetch what all work has in common, once per worker: an engine without states."""
    common: LocalEngine = import_module("ray").get(pickle.loads(place))
    return common


def _answer(message: Message, context: Context) -> Message:
    """Do the work of a message in a worker, and reply with its result or its error."""
    from flwr.app import ConfigRecord, Message, RecordDict

    done: object
    try:
        done = pickle.loads(message.content.config_records["work"]["pickle"]).do()  # type: ignore[arg-type]
    except Exception as error:
        done = error
    return Message(RecordDict({"done": ConfigRecord({"pickle": pickle.dumps(done)})}), reply_to=message)


@dataclass(frozen=True)
class SimulationEngine:
    """Runs a cohort on the workers of a simulation.

    Parameters
    ----------
    here
        An engine of the same clients in this process, whose states are everybody's.
    common
        Where Ray keeps what all work has in common.
    grid, nodes
        Flower's, and the numbers of its nodes: one per worker.
    running
        Says whether the simulation still is.
    """

    here: LocalEngine
    common: bytes
    grid: Grid
    nodes: Sequence[int]
    running: Callable[[], bool]

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        """Let every client of the cohort do its work."""
        asked = {turn.position: turn for turn in turns}
        parts = [Part(*share, [asked[p] for p in share[2]]) for share in self._shares(shared, list(asked))]
        done = [work for part in self._ask(parts) for work in part]
        outcomes = [outcome for work in done for outcome in work.outcomes]
        return Work(
            sorted(outcomes, key=lambda outcome: outcome.position),
            [summed for work in done for summed in work.sums],
            max((work.seconds for work in done), default=0.0),
        )

    def pool(self, gathered: Gathered) -> Gathered:
        """Return what is given: all has arrived here."""
        return gathered

    def forms(self) -> list[Weights]:
        """Give what the first client would send."""
        return self.here.forms()

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        """Try every client's model on its own test data, in the order of the federation."""
        everyone = range(len(self.here.problems.federation))
        work = [Trial(*share, adapt) for share in self._shares(shared, everyone)]
        tried = {
            position: score
            for trial, part in zip(work, self._ask(work), strict=True)
            for position, score in zip(trial.positions, part, strict=True)
        }
        return [tried[position] for position in everyone]

    def _shares(
        self, shared: Weights, positions: Sequence[int]
    ) -> Iterator[tuple[bytes, Weights, Sequence[int], Mapping[ClientId, Weights]]]:
        """Deal clients out to workers, the largest first, so that all have as much to do."""
        federation, workers = self.here.problems.federation, len(self.nodes)
        ordered = sorted(positions, key=lambda position: -int(federation.sizes[position]))
        shared = to(shared, torch.device("cpu"))
        for worker in range(min(workers, len(ordered))):
            own = ordered[worker::workers]
            ids = [federation.ids[position] for position in own]
            yield self.common, shared, own, {client_id: self.here.states[client_id] for client_id in ids}

    def _ask(self, work: Sequence[Task[T]]) -> list[list[T]]:
        """Give every worker something to do, and wait until all of it is done."""
        from flwr.app import ConfigRecord, Message, MessageType, RecordDict

        messages = [
            Message(
                RecordDict({"work": ConfigRecord({"pickle": pickle.dumps(part)})}), node, MessageType.TRAIN
            )
            for part, node in zip(work, self.nodes, strict=False)
        ]
        waiting = {client_id: number for number, client_id in enumerate(self.grid.push_messages(messages))}
        done: dict[int, list[T]] = {}
        while len(done) < len(work):
            for reply in self.grid.pull_messages(waiting):
                if reply.has_error():
                    raise UserError(f"a worker of the simulation has failed: {reply.error.reason}")
                result = pickle.loads(reply.content.config_records["done"]["pickle"])  # type: ignore[arg-type]
                if isinstance(result, Exception):
                    raise result
                done[waiting.pop(reply.metadata.reply_to_message_id)] = result
            if not self.running():
                raise UserError("Flower's simulation has ended: what it said is above")
            time.sleep(_POLL)
        return [done[number] for number in range(len(work))]


@contextmanager
def simulation(here: LocalEngine) -> Iterator[SimulationEngine]:
    """Begin a simulation of what an engine does here, and end it in the end.

    A Ray that is running is used (`ray.init` was called, `RAY_ADDRESS` names it, or `ray start` began it here);
    otherwise one is started on this machine. Every core is a worker, or every GPU, where there are some.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import_module("flwr")
        ray = import_module("ray")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the engine 'flower-simulation' needs {error.name}: pip install 'pflego[simulation]'"
        ) from error

    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.callback(ray.shutdown)
            _start(ray)
        kind = "GPU" if here.problems.device.type == "cuda" else "CPU"
        workers = int(ray.cluster_resources().get(kind, 0))
        if not workers:
            raise UserError(f"the Ray cluster has no {kind}")
        common = ray.cloudpickle.dumps(ray.put(replace(here, states={})))
        grid, running = stack.enter_context(_simulated(workers, gpus=kind == "GPU"))
        yield SimulationEngine(here, common, grid, sorted(grid.get_node_ids()), running)


def _start(ray: ModuleType) -> None:
    """Start Ray, or join one that is running; its workers find modules where this process does."""
    try:
        ray.init(
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
        )
    except (OSError, RuntimeError) as error:
        raise UserError(f"Ray cannot be used: {str(error).splitlines()[0]}") from error


@contextmanager
def _simulated(workers: int, *, gpus: bool) -> Iterator[tuple[Grid, Callable[[], bool]]]:
    """Run Flower's side of it beside this thread, and hand over its grid."""
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server, client = ServerApp(), ClientApp()
    client.train()(_answer)
    grids: Queue[Grid | None] = Queue()
    over = Event()

    @server.main()
    def hand_over(grid: Grid, context: Context) -> None:
        grids.put(grid)
        over.wait()

    def simulate() -> None:
        try:
            run_simulation(
                server,
                client,
                num_supernodes=workers,
                backend_config={"client_resources": {"num_cpus": 1, "num_gpus": int(gpus)}},
            )
        finally:
            grids.put(None)

    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)
    thread = Thread(target=simulate, name="flower simulation", daemon=True)
    thread.start()
    try:
        grid = grids.get()
        while grid is not None and thread.is_alive() and len(list(grid.get_node_ids())) < workers:
            time.sleep(_POLL)
        if grid is None or not thread.is_alive():
            raise UserError("Flower's simulation did not begin: what it said is above")
        yield grid, thread.is_alive
    finally:
        over.set()
        thread.join()
        log.setLevel(level)
