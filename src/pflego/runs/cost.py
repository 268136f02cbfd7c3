"""What a round costs a client: arithmetic, passes, memory, bytes, seconds, and an estimate of the energy.

Operations are counted by torch, over products and convolutions, which is where they are: a multiplication and an
addition are two. Memory is the most that tensors made during the work take up at one time: activations, gradients,
copies of weights; data and weights that were there before are not in it. Both belong to the method and the model,
only seconds to the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from pflego.algorithms.base import Algorithm
from pflego.engines.base import Gathered, Outcome, Turn, Work
from pflego.engines.local import LocalEngine
from pflego.engines.play import Exchange
from pflego.exchange.compression import Compression
from pflego.federation.draws import Participation, expected
from pflego.federation.participation import Everyone
from pflego.federation.roster import Federation
from pflego.learning import device as devices
from pflego.learning.evaluation import Score
from pflego.learning.heads import plain_loops
from pflego.learning.model import Model
from pflego.learning.problems import Problems
from pflego.learning.streaming import Speedup, Streaming, TrunkPasses
from pflego.weights import Weights, nbytes, to

_LONG = 2.0  # seconds of work that need not be measured again


@dataclass(frozen=True)
class Energy:
    """What operations and bytes are taken to cost. The defaults stand for a phone on Wi-Fi.

    They are round numbers, good for comparing methods: devices differ from them by a factor of ten.
    """

    joules_per_flop: float = 5e-11  # 20 GFLOP a joule
    joules_per_byte: float = 1e-6  # sent or received

    def __str__(self) -> str:
        return (
            f"{1e-9 / self.joules_per_flop:g} GFLOP a joule, {self.joules_per_byte * 1e6:g} joule a megabyte"
        )


@dataclass(frozen=True)
class Cost:
    """What one client pays in one round."""

    samples: int  # of its training data
    flops: int
    forward_passes: float  # over its own samples
    backward_passes: float
    memory: int  # bytes
    bytes_down: int
    bytes_up: int
    seconds: float
    device: str
    trunk_flops: int = 0  # of a frozen trunk, once for all rounds

    def joules(self, energy: Energy = Energy()) -> float:
        """Estimate the energy."""
        return (
            self.flops * energy.joules_per_flop + (self.bytes_down + self.bytes_up) * energy.joules_per_byte
        )


def measure(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    *,
    participation: Participation = Everyone(),
    slice_size: int | None = None,
    memory: str | float = "1GB",
    speedup: Speedup = "auto",
    trunk: TrunkPasses = "once",
    device: str | torch.device = "auto",
    seed: int = 0,
) -> Cost:
    """Measure what a first round costs the client of median size, without training anything.

    >>> import pflego
    >>> fed = pflego.load("digits", clients=20)
    >>> model = pflego.models.build("mlp", (64,))
    >>> methods = pflego.PFLEGO(steps=50), pflego.FedAvg(steps=50, client_lr=0.1)
    >>> cheap, dear = (measure(fed, model, method) for method in methods)
    >>> cheap.forward_passes, dear.forward_passes, dear.flops > 10 * cheap.flops
    (1, 50, True)
    """
    place = devices.resolve(device, model.dtype)
    streaming = Streaming(slice_size, memory, speedup, trunk)
    problems = Problems(federation, model.to(place), place, streaming, algorithm.labels)
    shared = to(algorithm.init_shared(model, problems.outputs, seed), place)
    position = median_client(federation)
    first = Problems(federation, model, labels=algorithm.labels)[position]
    state = to(algorithm.init_state(first, seed), place)
    mean = expected(participation, federation.ids, seed=seed)
    exchange = Exchange.of(algorithm, federation.masses, expected=mean, seed=seed)
    return client_cost(exchange, problems, position, shared, state)


def median_client(federation: Federation) -> int:
    """Return the position of a client of median size."""
    order = np.argsort(federation.sizes, kind="stable")
    return int(order[len(order) // 2])


def client_cost(
    exchange: Exchange,
    problems: Problems,
    position: int,
    shared: Weights,
    state: Weights,
    *,
    compression: Compression | None = None,
) -> Cost:
    """Let one client work through a round a few times, and measure it. What it does is thrown away."""
    client = problems.federation.ids[position]

    def work(watch: AbstractContextManager[object] | None = None) -> _AtWork:
        states, ids = {client: state}, problems.federation.ids
        local = LocalEngine(
            problems,
            exchange.algorithm,
            states,
            exchange.transforms,
            evaluate=False,
            compression=compression,
        )
        engine = _AtWork(local, watch or nullcontext())
        exchange.play(engine, 1, shared, {}, [position], ids=ids, keep=states.update)
        return engine

    once, of_trunk = problems.trunk, _Operations()
    if once is not None and (whole := problems.whole(position)).kept:  # which says how it is sliced
        with of_trunk:
            once.compute(whole, whole.x)
    problems[position].plan(
        1
    )  # passes samples through a trunk, and measures what a sample takes up, once, which is no part of the work
    flops, peak = _Operations(), _PeakMemory()
    with plain_loops():  # torch counts what torch does
        work(flops)
        counted = work(peak)  # by itself: the other counter holds on to tensors
    seconds = [work().seconds]
    if min(counted.seconds, *seconds) < _LONG:  # the first time pays for compilation
        seconds = [work().seconds for _ in range(3)]
    return Cost(
        samples=int(problems.federation.sizes[position]),
        flops=flops.total,
        forward_passes=counted.passes("forward"),
        backward_passes=counted.passes("backward"),
        memory=peak.most,
        bytes_down=counted.bytes_down,
        bytes_up=sum(outcome.bytes_up for outcome in counted.outcomes),
        seconds=median(seconds),
        device=str(problems.device),
        trunk_flops=of_trunk.total,
    )


@dataclass
class _AtWork:
    """An engine that looks at clients while they work, and not at the server."""

    local: LocalEngine
    watch: AbstractContextManager[object]
    outcomes: list[Outcome] = field(default_factory=list)  # one per exchange
    seconds: float = 0.0
    bytes_down: int = 0

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        with self.watch:
            work = self.local.run(turns, shared)
            _finish(self.local.problems.device)
        self.outcomes += work.outcomes
        self.seconds += work.seconds
        self.bytes_down += sum(nbytes({**shared, **turn.answer}) for turn in turns)
        return work

    def pool(self, gathered: Gathered) -> Gathered:
        return gathered

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        return self.local.scores(shared, adapt=adapt)

    def passes(self, way: str) -> float:
        return sum(outcome.metrics[f"{way}_passes"].total for outcome in self.outcomes)


def _finish(device: torch.device) -> None:
    """Wait for a device that works on its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class _NoModules(ModuleTracker):
    """Keeps track of nothing: torch's own hooks fail where a module's input is what is differentiated by."""

    def __enter__(self) -> _NoModules:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Operations(FlopCounterMode):
    """Counts operations, whatever module they belong to."""

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = _NoModules()
        self.total = 0  # over all times that it was on

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.total += self.get_total_flops()


class _PeakMemory(TorchDispatchMode):
    """Adds up the tensors that are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        old = {_place(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (place := _place(tensor)) not in old | self._sizes.keys():
                storage = tensor.untyped_storage()
                self._sizes[place] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._freed, place)
        self.most = max(self.most, self.now)
        return result

    def _freed(self, place: int) -> None:
        self.now -= self._sizes.pop(place, 0)


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
