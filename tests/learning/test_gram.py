"""Steps in the span of a client's samples: which backbones they are for, and that they change nothing but the cost.

tests/algorithms/test_rivals.py has them against NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.learning.gram import Opening
from pflego.learning.problem import Problem, Speedup, Streaming
from pflego.runs.cost import measure
from pflego.weights import Weights
from tests.support.cases import often

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
    "one activation twice": lambda: (
        lambda s: nn.Sequential(nn.Flatten(), nn.Linear(D, 9), s, nn.Linear(9, H), s)
    )(nn.Tanh()),
    "row by row": lambda: nn.Sequential(nn.Linear(D // 4, 2), nn.ReLU(), nn.Flatten()),  # not for the span
}
PLAIN_AND_GRAM: tuple[Speedup, ...] = ("none", "gram")
RULE: dict[str, Any] = {"steps": 9, "client_lr": 0.05}
METHODS: dict[str, pflego.Algorithm] = {
    "FedAvg": pflego.FedAvg(**RULE),
    "FedAvg, decay": pflego.FedAvg(**RULE, momentum=0.6, weight_decay=0.3),
    "FedProx": pflego.FedProx(**RULE, mu=0.5),
    "Ditto": pflego.Ditto(**RULE, mu=0.5, weight_decay=0.2),  # its anchor lies outside the span
    "FedBabu": pflego.FedBabu(**RULE, momentum=0.9),
    "Scaffold": pflego.Scaffold(**RULE, momentum=0.5),
    "FedDyn": pflego.FedDyn(**RULE, mu=0.3, weight_decay=0.1),
    "FedDane": pflego.FedDane(**RULE, mu=0.3),
    "MOON": pflego.MOON(**RULE, mu=0.7),
    "FedProto": pflego.FedProto(**RULE, mu=0.7),
}


def hooked(backbone: nn.Module) -> nn.Module:
    next(backbone.children()).register_forward_hook(lambda module, x, z: 2 * z)
    return backbone


def weights_of(run: pflego.Run) -> dict[str, Weights]:
    return {"shared": run.shared, **{str(name): dict(state) for name, state in run.states.items()}}


@pytest.mark.parametrize("method", often(METHODS.values()), ids=list(METHODS))
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


def test_steps_in_the_span_are_numpys(federation: pflego.Federation) -> None:
    """Of a linear network, with decay, momentum, an anchor and a slope outside the span, in float64."""
    model = pflego.Model(nn.Sequential(nn.Flatten(), nn.Linear(D, H, bias=False)).double(), features=H)
    problem = Problem(
        federation[0], model, federation.task, torch.device("cpu"), streaming=Streaming(speedup="gram")
    )
    generator = torch.Generator().manual_seed(7)
    drawn = [torch.randn(H, D, generator=generator, dtype=torch.float64) / 5 for _ in range(3)]
    head = torch.randn(3, H + 1, generator=generator, dtype=torch.float64)
    start, anchor, slope = ({"1.weight": w, "head": head / k} for k, w in enumerate(drawn, 1))
    method = pflego.FedAvg(steps=6, client_lr=0.1, momentum=0.5, weight_decay=0.05)
    ended = method.descend(problem, start, anchor=anchor, mu=0.3, slope=slope)

    x, targets = federation[0].x_train.flatten(1).numpy(), np.eye(3)[federation[0].y_train.numpy()]
    w, v = drawn[0].numpy().copy(), head.numpy().copy()
    speed = [np.zeros_like(w), np.zeros_like(v)]
    for _ in range(6):
        phi = x @ w.T
        outputs = phi @ v[:, :-1].T + v[:, -1]
        odds = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        residual = (odds / odds.sum(axis=1, keepdims=True) - targets) / N
        found = [
            v[:, :-1].T @ residual.T @ x,
            np.concatenate([residual.T @ phi, residual.sum(axis=0)[:, None]], axis=1),
        ]
        for k, (here, pull, push) in enumerate(
            zip((w, v), (drawn[1], head / 2), (drawn[2], head / 3), strict=True)
        ):
            move = found[k] + 0.05 * here + 0.3 * (here - pull.numpy()) + push.numpy()
            speed[k] = 0.5 * speed[k] + move
        w, v = w - 0.1 * speed[0], v - 0.1 * speed[1]
    np.testing.assert_allclose(ended["1.weight"].numpy(), w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ended["head"].numpy(), v, rtol=0, atol=1e-12)


class Counted(nn.Linear):
    """A layer that is no dense opening, and so never steps in a span."""


def test_it_is_the_default_where_it_is_cheaper_and_memory_suffices() -> None:
    """What is chosen shows in the operations: a function of shapes and settings alone."""
    x = torch.rand(40, 100, generator=torch.Generator().manual_seed(1))
    federation = pflego.Federation([pflego.Client(0, x, torch.arange(40) % 2)])
    model = pflego.Model(nn.Sequential(nn.Linear(100, 64), nn.ReLU()), features=64)
    other = pflego.Model(nn.Sequential(Counted(100, 64), nn.ReLU()), features=64)

    def operations(model: pflego.Model, steps: int, **given: Any) -> int:
        return measure(federation, model, pflego.FedAvg(steps=steps, client_lr=0.1), **given).flops

    plain, gram = (operations(model, 50, speedup=one) for one in PLAIN_AND_GRAM)
    assert operations(model, 50) == gram < plain == operations(other, 50)
    assert operations(model, 2) == operations(model, 2, speedup="none")  # X X' alone costs more
    assert operations(model, 50, memory="170KB") == plain  # there is room for a pass, and for no more
    assert operations(model, 50, memory="170KB", speedup="gram") == plain


@pytest.mark.parametrize(
    "backbone",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(8, H)),
        nn.Sequential(nn.ReLU(), nn.Linear(D, H)),
        nn.Linear(D, H),
        (lambda layer: nn.Sequential(layer, nn.ReLU(), layer))(nn.Linear(H, H)),
        hooked(nn.Sequential(nn.Linear(D, H), nn.ReLU())),
    ],
    ids=["convolution", "activation", "no sequence", "twice the same", "a hook"],
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
    assert not opening.pays(samples=1300, steps=1000)  # hardly fewer, in smaller products
