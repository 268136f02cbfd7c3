from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.learning.forward import ForwardPass
from pflego.learning.problem import Problem, Streaming
from pflego.learning.problems import Problems
from tests.support.cases import often
from tests.support.reference import distance, gradients, world

both_memories = pytest.mark.parametrize("memory", ["unlimited", 0], ids=["keep", "recompute"])


def bytes_world() -> tuple[pflego.Federation, pflego.Model]:
    """Images of 3 x 3 bytes, 13 and 8 of them, and a small convolution in float64."""
    rng = np.random.default_rng(0)
    members = []
    for i, n in enumerate((13, 8)):
        x, y = rng.integers(256, size=(n, 1, 3, 3), dtype=np.uint8), np.arange(n) % 3
        members.append(pflego.Client(i, x, y, x[:5], y[:5]))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Conv2d(1, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 5)).double()
    return pflego.Federation(members), pflego.Model(backbone, features=5)


def problem(
    federation: pflego.Federation, model: pflego.Model, slice_size: int | None, memory: str | float
) -> Problem:
    return Problems(federation, model, streaming=Streaming(slice_size, memory))[0]


@both_memories
@pytest.mark.parametrize("slice_size", [None, 1, 3, 7, 12], ids=str)
@pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
def test_a_gradient_in_slices_is_the_gradient(
    regression: bool, slice_size: int | None, memory: str | float
) -> None:
    twin = world(regression=regression)  # its first client has 7 samples
    W = np.random.default_rng(1).normal(size=twin.heads[0].shape)
    part = problem(twin.federation, twin.model, slice_size, memory)
    found = part.gradient({**twin.model.weights(), "head": torch.from_numpy(W)})
    dV, dv, dW = gradients(twin.net, W, twin.sites[0])
    assert distance(found["0.weight"], dV) < 1e-12
    assert distance(found["0.bias"], dv) < 1e-12
    assert distance(found["head"], dW) < 1e-12


@both_memories
@pytest.mark.parametrize("slice_size", [1, 3, 13, 18])
def test_bytes_in_slices_give_the_same_gradient(slice_size: int, memory: str | float) -> None:
    federation, model = bytes_world()
    head = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 6)))
    weights = {**model.weights(), "head": head}
    whole = problem(federation, model, None, "unlimited").gradient(weights)
    for name, found in problem(federation, model, slice_size, memory).gradient(weights).items():
        assert distance(found, whole[name].numpy()) < 1e-12


@both_memories
@pytest.mark.parametrize("slice_size", often([3, 1, 12, 32]))
@pytest.mark.parametrize("data", often(["floats", "bytes"]))
def test_a_run_in_slices_is_the_same_run(data: str, slice_size: int, memory: str | float) -> None:
    twin = world()
    federation, model = (twin.federation, twin.model) if data == "floats" else bytes_world()
    algorithm = pflego.PFLEGO(steps=4, client_lr=0.1, server_lr=0.05, server_optimizer="sgd")
    whole = pflego.train(federation, model, algorithm, rounds=4)
    sliced = pflego.train(
        federation,
        model,
        algorithm,
        rounds=4,
        slice_size=slice_size,
        memory=memory,
    )
    for name, w in whole.shared.items():
        assert distance(sliced.shared[name], w.numpy()) < 1e-12
    for id in federation.ids:
        assert distance(sliced.states[id]["head"], whole.states[id]["head"].numpy()) < 1e-12
    for mine, theirs in zip(sliced.history, whole.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
        assert mine["participants_accuracy"] == theirs["participants_accuracy"]
        assert mine["forward_passes"] == (1 if memory else 2)
        assert mine["backward_passes"] == 1
    assert [row["loss"] for row in sliced.evaluate()] == pytest.approx(
        [row["loss"] for row in whole.evaluate()], rel=1e-12
    )


@pytest.mark.parametrize(("memory", "passes"), [("unlimited", (1, 1)), (0, (2, 1))])
@pytest.mark.parametrize("slice_size", [None, 3], ids=str)
def test_passes_are_counted_over_all_samples(
    slice_size: int | None, memory: str | float, passes: tuple[int, int]
) -> None:
    twin = world()
    part = problem(twin.federation, twin.model, slice_size, memory)
    weights = {**twin.model.weights(), "head": torch.zeros(2, 5, dtype=torch.float64)}
    forward = part.forward(weights)
    forward.backward(torch.ones_like(forward.features))
    assert (part.forward_passes, part.backward_passes) == passes
    part.loss(weights)
    part.test(weights)
    assert (part.forward_passes, part.backward_passes) == passes
    part.gradient(weights)  # slice by slice, nothing need be kept or computed again
    assert (part.forward_passes, part.backward_passes) == (passes[0] + 1, passes[1] + 1)


class Watched(nn.Module):
    """Notes how many samples it is given at a time."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.sizes: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        y: torch.Tensor = self.inner(x)
        return y


@both_memories
def test_no_more_than_a_slice_is_in_the_backbone_at_a_time(memory: str | float) -> None:
    twin = world()
    backbone = Watched(twin.model.backbone)
    part = problem(twin.federation, pflego.Model(backbone, features=4), 3, memory)
    weights = {**part.model.weights(), "head": torch.zeros(2, 5, dtype=torch.float64)}
    assert part.kept.size == 3
    assert backbone.sizes == ([] if memory else [3])  # what a sample takes up is measured once
    backbone.sizes.clear()
    forward = part.forward(weights)
    forward.backward(torch.ones_like(forward.features))
    there = [3, 3, 1] if memory else [3, 3, 1, 3, 3, 1]
    assert backbone.sizes == there
    part.gradient(weights)
    part.loss(weights)
    part.test(weights)
    assert backbone.sizes == [*there, 3, 3, 1, 3, 3, 1, 3, 1]


@pytest.mark.parametrize("clients", [1, 2])
def test_what_fits_is_kept_and_the_rest_is_computed_again(clients: int) -> None:
    """A budget for the activations of three samples saves the second pass of just those."""
    twin = world()

    def problems(memory: str | float) -> list[Problem]:
        all_of_them = Problems(twin.federation, twin.model, streaming=Streaming(1, memory))
        return [all_of_them[place] for place in range(clients)]

    free = problems("unlimited")
    samples, each = sum(one.samples for one in free), twin.model.activation_bytes(free[0].x[:1])
    besides = 4 * 8 * (samples * twin.model.features + sum(twin.model.sizes.values())) + 1.5 * each
    held = problems(besides + 3 * each)
    weights = twin.model.weights()
    slopes = torch.ones(samples, twin.model.features, dtype=torch.float64)
    found, expected = (ForwardPass(some, weights).backward(slopes) for some in (held, free))
    assert all(distance(found[name], g.numpy()) < 1e-12 for name, g in expected.items())
    assert sum(one.passed.forward for one in free) == samples
    assert sum(one.passed.forward for one in held) == 2 * samples - 3
    assert [one.passed.backward for one in held] == [one.samples for one in held]


def test_curvature_is_measured_in_slices_too() -> None:
    twin = world()
    backbone = Watched(twin.model.backbone)
    part = problem(twin.federation, pflego.Model(backbone, features=4), 3, 0)
    part.backbone_smoothness({**part.model.weights(), "head": torch.ones(2, 5, dtype=torch.float64)}, 2)
    assert max(backbone.sizes) <= 3


@pytest.mark.parametrize("slice_size", [0, -3, 2.5, True, "10"], ids=str)
def test_a_wrong_slice_size_is_refused_by_name(slice_size: object) -> None:
    with pytest.raises(pflego.SettingError, match="slice_size"):
        Streaming(slice_size)  # type: ignore[arg-type]


def test_a_wrong_memory_or_speedup_is_refused_by_name() -> None:
    for wrong in ("recompute", "12 apples", "-1MB", "nan", "MB", -1, True, float("nan")):
        with pytest.raises(pflego.SettingError, match="memory"):
            Streaming(10, wrong)
    with pytest.raises(pflego.SettingError, match="unknown speedup 'grm': did you mean 'gram'"):
        Streaming(10, speedup="grm")  # type: ignore[arg-type]


def test_training_refuses_them_too() -> None:
    twin = world()
    for wrong in ({"slice_size": 0}, {"memory": "none"}, {"speedup": "keep"}):
        with pytest.raises(pflego.SettingError, match=next(iter(wrong))):
            pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=1, **wrong)


# One client_update, and how far it pushed the peak of resident memory, in bytes. The peak is read from
# /proc/self/status: ru_maxrss of a child begins with that of the process that started it, pytest here.
GROWTH = """
import sys
import numpy as np, torch
from torch import nn
import pflego
from pflego.exchange.round import Round
from pflego.learning.problem import Streaming
from pflego.learning.problems import Problems

torch.set_num_threads(1)
samples, inputs, width, depth, features, batch = map(int, sys.argv[2:])
rng = np.random.default_rng(0)
x = rng.integers(256, size=(samples, inputs), dtype=np.uint8)
widths = [inputs, *[width] * depth]
layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.Tanh())]
model = pflego.Model(nn.Sequential(*layers, nn.Linear(width, features)), features=features)
streaming = {
    "whole": Streaming(memory="unlimited"), "keep": Streaming(batch, "unlimited"), "recompute": Streaming(batch, 0)
}[sys.argv[1]]
algorithm = pflego.PFLEGO(steps=3)

def work(n):
    federation = pflego.Federation([pflego.Client(0, x[:n], np.arange(n) % 2)])
    problem = Problems(federation, model, streaming=streaming)[0]
    algorithm.client_update(Round(1), model.weights(), algorithm.init_state(problem, 0), problem)

def peak():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))

work(batch)  # what libraries need once
before = peak()
work(samples)
print(peak() - before)
"""


def growth(how: str, *sizes: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, how, *map(str, sizes)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's peak of resident memory")
def test_recomputing_holds_one_slice_of_activations_only() -> None:
    samples, inputs, width, depth, features, batch = 20_000, 64, 300, 6, 32, 200
    # In float32, 4 bytes a number:
    # features: themselves and their slices, then phi, its transpose and the gradient         5 n M =  13 MB
    # a slice: its inputs, and a pre-activation and an activation a layer, both ways      4 b d H   =   6 MB
    # weights: theta, two gradients that are added up and their sum                          4 |theta| = 8 MB
    # and all of it twice over, for the allocator: 52 MB.
    theta = inputs * width + (depth - 1) * width * width + width * features
    bound = 2 * 4 * (5 * samples * features + 4 * batch * depth * width + 4 * theta)
    # The whole pass keeps an activation a layer, of all samples: n d H = 144 MB.
    activations = 4 * samples * depth * width
    assert activations > 2 * bound
    sizes = (samples, inputs, width, depth, features, batch)
    assert growth("recompute", *sizes) < bound
    assert growth("whole", *sizes) > 0.9 * activations
