"""What a round costs a client: arithmetic, passes, memory, bytes, seconds, and an estimate of the energy.

Operations are counted by torch, over products and convolutions, which is where they are: a multiplication and an
addition are two. Memory is the most that tensors made during the work take up at one time: activations, gradients,
copies of weights; data and weights that were there before are not in it. Both belong to the method and the model,
only seconds to the device.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from pflego import device as devices
from pflego.algorithms.base import Algorithm, Round
from pflego.federation import Federation
from pflego.heads import plain_loops
from pflego.model import Model
from pflego.participation import Everyone, Participation
from pflego.problem import Memory, Problems, Streaming
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
    forward_passes: int
    backward_passes: int
    memory: int  # bytes
    bytes_down: int
    bytes_up: int
    seconds: float
    device: str

    def joules(self, energy: Energy = Energy()) -> float:  # noqa: B008 - immutable
        """Estimate the energy."""
        return (
            self.flops * energy.joules_per_flop + (self.bytes_down + self.bytes_up) * energy.joules_per_byte
        )


def measure(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    *,
    participation: Participation = Everyone(),  # noqa: B008 - immutable
    batch_size: int | None = None,
    memory: Memory = "keep",
    device: str | torch.device = "auto",
    seed: int = 0,
) -> Cost:
    """Measure what a first round costs the client of median size, without training anything.

    >>> import pflego
    >>> fed = pflego.load("digits", clients=20)
    >>> model = pflego.models.build("mlp", (64,))
    >>> cheap, dear = (measure(fed, model, m(steps=50)) for m in (pflego.PFLEGO, pflego.FedAvg))
    >>> cheap.forward_passes, dear.forward_passes, dear.flops > 10 * cheap.flops
    (1, 50, True)
    """
    place = devices.resolve(device, model.dtype)
    problems = Problems(
        federation, model.to(place), place, Streaming(batch_size, memory), algorithm.label_space
    )
    shared = to(algorithm.init_shared(model, problems.outputs, seed), place)
    position = median_client(federation)
    first = Problems(federation, model, labels=algorithm.label_space)[position]
    state = to(algorithm.init_state(first, seed), place)
    expected = participation.expected(len(federation))
    return client_cost(problems, position, algorithm, shared, state, expected=expected, seed=seed)


def median_client(federation: Federation) -> int:
    """Where a client of median size stands."""
    order = np.argsort(federation.sizes, kind="stable")
    return int(order[len(order) // 2])


def client_cost(
    problems: Problems,
    position: int,
    algorithm: Algorithm,
    shared: Weights,
    state: Weights,
    *,
    expected: float,
    seed: int = 0,
) -> Cost:
    """Let one client do its work a few times, and measure it. What it does is thrown away."""
    federation = problems.federation
    round = Round(1, len(federation), expected, federation.samples, selected=1, seed=seed)

    def work() -> tuple[float, Any]:
        problem = problems[position]
        start = time.perf_counter()
        update = algorithm.client_update(round, shared, state, problem)
        _finish(problem.device)
        return time.perf_counter() - start, (problem, update)

    with plain_loops():  # torch counts what torch does
        with _Operations() as flops:
            work()
        with _PeakMemory() as peak:  # by itself: the other counter holds on to tensors
            slowly, (problem, update) = work()
    seconds = [work()[0]]
    if min(slowly, *seconds) < _LONG:  # the first time pays for compilation
        seconds = [work()[0] for _ in range(3)]
    return Cost(
        samples=problem.samples,
        flops=flops.get_total_flops(),
        forward_passes=problem.forward_passes,
        backward_passes=problem.backward_passes,
        memory=peak.most,
        bytes_down=nbytes(shared),
        bytes_up=nbytes(update.message),
        seconds=median(seconds),
        device=str(problems.device),
    )


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
