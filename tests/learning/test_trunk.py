"""A frozen beginning of a backbone is passed once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

import pflego
from pflego.learning import trunk_store
from pflego.learning.modes import Norm
from pflego.learning.problem import Streaming
from pflego.learning.problems import Problems
from pflego.learning.trunk import Trunk
from pflego.learning.trunk_store import STORE, Store
from pflego.models.layers import ImagesFirst
from pflego.runs.cost import measure
from tests.support.cases import often

CLOSE = 1e-12


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    STORE.clear()
    yield
    STORE.clear()


class Counted(nn.Module):
    """Counts the samples that pass."""

    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        Counted.seen += len(x)
        return x


def frozen(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers).requires_grad_(False)


def network(*, norm: bool = False, dropout: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    middle = [nn.BatchNorm1d(10)] if norm else []
    last = [nn.Dropout(0.3)] if dropout else []
    made = nn.Sequential(
        frozen(ImagesFirst(), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 10),
        *middle,
        nn.ReLU(inplace=True),
        *last,
        nn.Linear(10, 6),
        nn.Tanh(),
    )
    return made.double()


def federation(clients: int = 4, samples: int = 13) -> pflego.Federation:
    draw = np.random.default_rng(3)
    return pflego.Federation(
        [
            pflego.Client(
                f"c{i}",
                draw.normal(size=(samples + i, 8, 8)),
                draw.integers(0, 3, samples + i),
                draw.normal(size=(5, 8, 8)),
                draw.integers(0, 3, 5),
            )
            for i in range(clients)
        ]
    )


METHODS = [
    pflego.PFLEGO(steps=5, client_lr=0.1, server_lr=0.1, server_optimizer="sgd"),
    pflego.PFLEGO(steps=3, common_head=True),
    pflego.FedAvg(steps=3, client_lr=0.1),
    pflego.FedAvg(epochs=1, batch_size=4, client_lr=0.1),
    pflego.Ditto(steps=2, client_lr=0.1),
    pflego.FedRep(steps=2, body_steps=1, client_lr=0.1),
    pflego.FedProto(steps=2, client_lr=0.1),
    pflego.MOON(steps=2, client_lr=0.1),
    pflego.Local(steps=2, client_lr=0.1),
]


@pytest.mark.parametrize("method", often(METHODS, METHODS[0]), ids=lambda m: m.name)
def test_every_method_learns_the_same(method: pflego.Algorithm) -> None:
    model = pflego.Model(network(), features=6)
    once, always = (
        pflego.train(federation(), model, method, rounds=3, participation=3, evaluate_every=2, trunk=passes)
        for passes in ("once", "always")
    )
    assert model.trunk is not None
    assert_alike(once, always)
    for row, other in zip(once.history, always.history, strict=True):
        assert row["forward_passes"] == other["forward_passes"]
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-12)
        assert "trunk_passes" not in other


@pytest.mark.parametrize("rule", ["averaged", "personal"])
def test_moving_statistics_and_dropout_behind_the_trunk_are_the_same(rule: Norm) -> None:
    backbone = network(norm=True, dropout=True)
    model = pflego.Model(
        nn.Sequential(frozen(ImagesFirst(), nn.Flatten(), nn.Linear(64, 36)).double(), *list(backbone)[3:]),
        features=6,
        norm=rule,
    )
    method = pflego.FedAvg(epochs=1, batch_size=5, client_lr=0.1)
    assert model.trunk is not None
    assert_alike(
        *(pflego.train(federation(), model, method, rounds=3, trunk=passes) for passes in ("once", "always"))
    )


def test_a_trunk_that_is_all_of_it_leaves_heads_on_constant_features() -> None:
    model = pflego.Model(network().requires_grad_(False), features=6)
    method = pflego.PFLEGO(steps=4, client_lr=0.1)
    once, always = (
        pflego.train(federation(), model, method, rounds=2, trunk=passes) for passes in ("once", "always")
    )
    assert once.shared == {}
    assert_alike(once, always)


def test_it_learns_what_the_rest_learns_from_features_made_elsewhere() -> None:
    """The trunk in NumPy: relu(x A' + b), and a model of the rest alone, trained on that."""
    torch.manual_seed(2)
    first, rest = nn.Linear(64, 20).double(), nn.Sequential(nn.Linear(20, 5), nn.Tanh()).double()
    whole = nn.Sequential(nn.Flatten(), first.requires_grad_(False), nn.ReLU(), *rest)
    weight, bias = first.weight.numpy(), first.bias.numpy()

    def through(x: Tensor) -> npt.NDArray[np.float64]:
        made: npt.NDArray[np.float64] = np.maximum(x.numpy().reshape(len(x), -1) @ weight.T + bias, 0)
        return made

    seen = pflego.Federation(
        [
            pflego.Client(c.id, through(c.x_train), c.y_train, through(c.x_test), c.y_test)
            for c in federation()
        ]
    )
    method = pflego.PFLEGO(steps=5, client_lr=0.1, server_lr=0.1)
    run = pflego.train(federation(), pflego.Model(whole, features=5), method, rounds=4)
    other = pflego.train(seen, pflego.Model(rest, features=5), method, rounds=4)
    assert torch.allclose(run.shared["3.weight"], other.shared["0.weight"], rtol=0, atol=CLOSE)
    assert run.history[-1]["everyone_accuracy"] == other.history[-1]["everyone_accuracy"]
    for client in run.states:
        assert torch.allclose(run.states[client]["head"], other.states[client]["head"], rtol=0, atol=CLOSE)


def test_samples_go_through_it_once_however_many_rounds_and_runs_there_are() -> None:
    backbone = network()
    backbone.get_submodule("0").insert(1, Counted())  # type: ignore[operator]
    model, fed = pflego.Model(backbone, features=6), federation()
    Counted.seen = 0
    method = pflego.FedAvg(epochs=2, batch_size=4, client_lr=0.1)
    pflego.train(fed, model, method, rounds=1, evaluate_every=1)
    assert Counted.seen >= sum(len(c.x_train) + len(c.x_test) for c in fed)
    Counted.seen = 0
    run = pflego.train(fed, model, method, rounds=5, evaluate_every=1)
    assert Counted.seen == 8 + 8 + 8 + 1  # the model is tried before training, and nothing else passes
    assert [row["trunk_passes"] for row in run.history] == [0] * 5
    STORE.clear()
    run = pflego.train(fed, model, method, rounds=3)
    assert [row["trunk_passes"] for row in run.history] == [1, 0, 0]
    assert [row["forward_passes"] for row in run.history] == [2, 2, 2]


def test_beyond_the_budget_outputs_are_on_disk_and_the_result_is_the_same() -> None:
    model, fed = pflego.Model(network(), features=6), federation()
    method = pflego.PFLEGO(steps=3)
    plain = pflego.train(fed, model, method, rounds=3)
    assert STORE.files == 0
    assert STORE.bytes > 0
    STORE.clear()
    problems = Problems(fed, model, streaming=Streaming(memory=9000))
    problems[0].features(model.weights())
    kept = STORE.bytes
    for position in range(len(fed)):
        problems[position].features(model.weights())
    assert STORE.files > 0
    assert 0 < kept <= STORE.bytes <= 9000
    for position in range(len(fed)):
        found = problems[position].features(model.weights())
        wanted = Problems(fed, model, streaming=Streaming(trunk="always"))[position].features(model.weights())
        assert torch.allclose(found, wanted, rtol=0, atol=CLOSE)
    assert_alike(plain, pflego.train(fed, model, method, rounds=3, memory=9000))


def test_outputs_in_channels_last_come_back_from_disk_as_they_were() -> None:
    store = Store(limit=0)
    tensor = torch.randn(3, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    store.put("a", tensor)
    found = store.get("a")
    assert found is not None
    assert found.stride() == tensor.stride()
    assert torch.equal(found, tensor)


def test_a_disk_that_is_full_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunk_store, "_SPARE", 1e18)
    store = Store(limit=0)
    tensor = torch.ones(3)
    assert store.put("a", tensor) is tensor
    assert store.files == 0
    assert store.get("a") is None


def test_a_file_that_is_gone_is_computed_again() -> None:
    store = Store(limit=0)
    store.put("a", torch.ones(3))
    store._on_disk["a"].path.unlink()
    assert store.get("a") is None


def test_other_weights_or_other_data_are_not_mistaken_for_those_that_were_kept() -> None:
    fed, backbone = federation(), network()
    model = pflego.Model(backbone, features=6)

    def features() -> Tensor:
        return Problems(fed, model)[0].features(model.weights())

    def anew() -> Tensor:
        return Problems(fed, model, streaming=Streaming(trunk="always"))[0].features(model.weights())

    before = features()
    with torch.no_grad():
        backbone.get_parameter("0.1.weight").mul_(2)
    assert not torch.equal(features(), before)
    assert torch.equal(features(), anew())
    fed[0].x_train.mul_(0.5)
    assert torch.equal(features(), anew())


class Scaled(nn.Module):
    """A layer with a number that is no tensor."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


def test_two_trunks_with_the_same_weights_that_do_different_things_are_told_apart() -> None:
    fed = federation()
    linear = nn.Linear(64, 6).double().requires_grad_(False)
    models = [
        pflego.Model(
            nn.Sequential(nn.Flatten(), linear, Scaled(by).eval(), nn.Linear(6, 6).double()), features=6
        )
        for by in (1.0, 2.0)
    ]
    one, two = (Problems(fed, model)[0].x for model in models)
    assert torch.equal(2 * one, two)


def test_a_rest_that_writes_to_its_inputs_gets_copies() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mul_(2))

    model = pflego.Model(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 6).requires_grad_(False), Doubled(6, 6)).double(),
        features=6,
    )
    fed, weights = federation(), model.weights()
    problem = Problems(fed, model)[0]
    first = problem.features(weights)
    assert torch.equal(problem.features(weights), first)
    again = pflego.Model(model.backbone, features=6)  # finds what was kept before
    for _ in range(2):
        assert torch.equal(Problems(fed, again)[0].features(weights), first)


FREE = nn.Linear(4, 4)


def held() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


class Halves(nn.Module):
    def __init__(self, trunk: nn.Module, rest: nn.Module) -> None:
        super().__init__()
        self.rest, self.trunk = rest, trunk

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.rest(self.trunk(x))
        return features


@pytest.mark.parametrize(
    ("backbone", "norm", "trunk"),
    [
        (nn.Sequential(held(), nn.ReLU(), FREE), None, ["0.weight", "0.bias"]),
        (nn.Sequential(nn.Sequential(held(), FREE), held()), None, ["0.0.weight", "0.0.bias"]),
        (Halves(held(), FREE), None, ["trunk.weight", "trunk.bias"]),
        (Halves(FREE, held()), None, None),
        (nn.Sequential(nn.ReLU(), FREE), None, None),
        (held(), None, ["whole.weight", "whole.bias"]),
        (FREE, None, None),
        (nn.Sequential(FREE, held()), None, None),
        (nn.Sequential(nn.Dropout(0.5), held(), FREE), None, None),
        (nn.Sequential(nn.Dropout(0.5).eval(), held(), FREE), None, ["1.weight", "1.bias"]),
        (nn.Sequential(held(), nn.BatchNorm1d(4, affine=False), FREE), "averaged", ["0.weight", "0.bias"]),
        (nn.Sequential(nn.BatchNorm1d(4, affine=False), held(), FREE), "averaged", None),
    ],
)
def test_it_ends_before_the_first_layer_that_is_no_constant(
    backbone: nn.Module, norm: Norm | None, trunk: list[str] | None
) -> None:
    found = Trunk.of(pflego.Model(backbone, features=4, norm=norm))
    assert (None if found is None else [n for n in found._weights if "running" not in n]) == trunk


def test_what_a_round_costs_is_without_the_trunk_which_is_said_beside_it() -> None:
    fed, model, method = federation(), pflego.Model(network(), features=6), pflego.PFLEGO(steps=2)
    once, always = (measure(fed, model, method, trunk=passes) for passes in ("once", "always"))
    samples = once.samples
    assert once.trunk_flops == samples * 2 * 4 * 9 * 6 * 6  # a 3x3 convolution with four filters
    assert always.flops == once.flops + once.trunk_flops
    assert always.trunk_flops == 0


def assert_alike(run: pflego.Run, other: pflego.Run) -> None:
    pairs = [(run.shared, other.shared), *((run.states[c], other.states[c]) for c in run.states)]
    for ours, theirs in pairs:
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.allclose(tensor, theirs[name], rtol=0, atol=CLOSE), name


def test_a_layer_that_stands_twice_is_passed_twice() -> None:
    torch.manual_seed(2)
    squash = nn.Tanh()
    backbone = nn.Sequential(frozen(nn.Linear(4, 6)), squash, nn.Linear(6, 3), squash).double()
    x = torch.rand(5, 4, dtype=torch.float64)
    problems = Problems(
        pflego.Federation([pflego.Client(0, x, torch.arange(5) % 2)]), pflego.Model(backbone, 3)
    )
    assert problems.trunk is not None
    torch.testing.assert_close(problems[0].features(problems.trained.weights()), backbone(x).detach())
