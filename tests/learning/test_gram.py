"""Steps in the span of a client's samples: which backbones they are for, and that they change nothing but the cost.

tests/algorithms/test_rivals.py has them against NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import pflego
from pflego.learning.gram import Opening
from pflego.learning.problem import Speedup
from pflego.runs.cost import measure
from pflego.weights import Weights

N, D, H = 30, 40, 8  # samples, inputs, outputs of the first layer


@pytest.fixture
def federation() -> pflego.Federation:
    generator = torch.Generator().manual_seed(3)
    clients = []
    for i in range(3):
        x = torch.randn(N, 4, D // 4, generator=generator, dtype=torch.float64)
        clients.append(pflego.Client(f"c{i}", x, torch.arange(N) % 3))
    return pflego.Federation(clients)


def frozen_bias() -> nn.Module:
    layer = nn.Linear(D, H)
    layer.bias.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh())


BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(D, H), nn.ReLU()),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(D, H)),
    "deep": lambda: nn.Sequential(
        nn.Flatten(), nn.Identity(), nn.Linear(D, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, H)
    ),
    "no bias, in place": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(D, H, bias=False), nn.ReLU(inplace=True)
    ),
    "frozen bias": frozen_bias,
    "row by row": lambda: nn.Sequential(nn.Linear(D // 4, 2), nn.ReLU(), nn.Flatten()),  # not for the span
}
PLAIN_AND_GRAM: tuple[Speedup, ...] = ("none", "gram")
METHODS: dict[str, pflego.Algorithm] = {
    "FedAvg": pflego.FedAvg(steps=9, client_lr=0.05),
    "FedProx": pflego.FedProx(steps=9, client_lr=0.05, mu=0.5),
    "Ditto": pflego.Ditto(steps=9, client_lr=0.05, mu=0.5),  # its anchor lies outside the span
    "FedBabu": pflego.FedBabu(steps=9, client_lr=0.05, momentum=0.9),
}


def weights_of(run: pflego.Run) -> dict[str, Weights]:
    return {"shared": run.shared, **{str(name): dict(state) for name, state in run.states.items()}}


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
@pytest.mark.parametrize("backbone", BACKBONES.values(), ids=list(BACKBONES))
def test_the_steps_are_the_same(
    federation: pflego.Federation, backbone: Callable[[], nn.Module], method: pflego.Algorithm
) -> None:
    torch.manual_seed(5)
    model = pflego.Model(backbone().double(), features=H)
    assert model.opening is not None
    plain, gram = (
        pflego.train(federation, model, method, rounds=3, participation=3, seed=1, speedup=speedup)
        for speedup in PLAIN_AND_GRAM
    )
    ours, theirs = weights_of(gram), weights_of(plain)
    assert ours.keys() == theirs.keys()
    for owner in theirs:
        assert ours[owner].keys() == theirs[owner].keys()
        for name, tensor in theirs[owner].items():
            assert torch.allclose(ours[owner][name], tensor, rtol=0, atol=1e-10), (owner, name)
    passes = ("forward_passes", "backward_passes", "bytes_up")
    assert [[row[key] for key in passes] for row in gram.history] == [
        [row[key] for key in passes] for row in plain.history
    ]


def test_a_round_takes_as_many_operations_as_announced(federation: pflego.Federation) -> None:
    model = pflego.Model(BACKBONES["one layer"]().double(), features=H)
    plain, gram = (
        measure(federation, model, pflego.FedAvg(steps=50), speedup=speedup).flops
        for speedup in PLAIN_AND_GRAM
    )
    heads = plain - 50 * 2 * (2 * N * D * H)
    assert gram == heads + 2 * (N * N * D + 2 * N * D * H + 50 * N * N * H)


@pytest.mark.parametrize(
    "backbone",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(8, H)),
        nn.Sequential(nn.ReLU(), nn.Linear(D, H)),
        nn.Linear(D, H),
    ],
    ids=["convolution", "activation", "no sequence"],
)
def test_other_backbones_have_no_dense_opening(backbone: nn.Module) -> None:
    assert pflego.Model(backbone, features=H).opening is None


def test_a_frozen_layer_is_no_opening() -> None:
    layer = nn.Linear(D, H).requires_grad_(False)
    assert pflego.Model(nn.Sequential(layer, nn.Linear(H, H)), features=H).opening is None


def test_it_is_used_only_where_it_takes_fewer_operations() -> None:
    opening = Opening.of(nn.Sequential(nn.Linear(784, 200), nn.ReLU()))
    assert opening is not None
    assert opening.pays(samples=600, steps=50)
    assert not opening.pays(samples=600, steps=1)  # the Gram matrix itself costs more
    assert not opening.pays(samples=1600, steps=1000)  # more than twice as many samples as inputs
