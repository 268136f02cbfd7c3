"""A client's budget of memory is kept, whatever it is."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from torch import nn

import pflego
from pflego.learning.memory import Memory
from pflego.runs.cost import measure

SAMPLES = 400


@pytest.fixture(name="federation", scope="module")
def _federation() -> pflego.Federation:
    rng = np.random.default_rng(0)
    images = rng.random((SAMPLES, 28, 28), dtype=np.float32)
    return pflego.Federation([pflego.Client(0, images, np.arange(SAMPLES) % 5)])


@pytest.fixture(name="deep", scope="module")
def _deep() -> pflego.Model:
    layers = [nn.Flatten(), nn.Linear(784, 300)]
    for _ in range(5):
        layers += [nn.Tanh(), nn.Linear(300, 300)]
    return pflego.Model(nn.Sequential(*layers, nn.Tanh()), features=300)


@pytest.mark.thorough
def test_a_convolutional_client_stays_within_its_budget(federation: pflego.Federation) -> None:
    model = pflego.models.build("omniglot-conv4", (28, 28))
    budgets, steps = [12e6, 30e6], pflego.PFLEGO(steps=3)
    free = measure(federation, model, steps, memory="unlimited")
    held = [measure(federation, model, steps, memory=budget) for budget in budgets]
    for budget, cost in zip(budgets, held, strict=True):
        assert cost.memory <= budget < free.memory / 2
        assert 1 < cost.forward_passes < 2


def test_more_memory_is_less_work(federation: pflego.Federation, deep: pflego.Model) -> None:
    budgets = [12e6, 15e6, 1e9]
    costs = [measure(federation, deep, pflego.PFLEGO(steps=3), memory=m) for m in budgets]
    assert all(cost.memory <= budget for cost, budget in zip(costs, budgets, strict=True))
    assert all(one.forward_passes >= other.forward_passes for one, other in pairwise(costs))
    assert costs[0].forward_passes > costs[-1].forward_passes == 1


def test_a_plan_by_hand() -> None:
    # 100 samples of 10 bytes, features of 1 byte: 1000 and 4 * 100; theta 5 bytes: 20
    assert Memory(1420).plan(100, 10, 1, 5, None).samples == 100
    assert Memory(1420).plan(100, 10, 1, 5, None).size is None
    # 999 are left, less 3/2 of 80: 87 samples, of which 80 are whole slices
    short = Memory(1419).plan(100, 10, 1, 5, 8)
    assert (short.size, short.samples) == (8, 80)
    tight = Memory(720).plan(100, 10, 1, 5, 32)  # 300: slices of 10, and 150 for 15 samples
    assert (tight.size, tight.samples) == (10, 10)
    assert Memory(720).plan(100, 10, 1, 5, 32, said=16).size == 16
    nothing = Memory(0).plan(100, 10, 1, 5, None)
    assert (nothing.size, nothing.samples) == (4, 0)
