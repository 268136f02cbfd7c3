from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pflego
from pflego.learning.heads import Descent, LinearHead
from pflego.learning.heads.rules import RULES, Rule
from pflego.learning.task import Classification, Regression, Task
from tests.support.reference import F64, Adam, Net, Site, distance, gradients, link, loss


def site(*, n: int, classes: int, regression: bool) -> tuple[Net, F64, Site]:
    """A network, a head and data; features come from the network."""
    rng = np.random.default_rng(n)
    net = Net(rng.normal(size=(4, 6)), rng.normal(size=4))
    x = rng.normal(size=(n, 6))
    t = rng.normal(size=(n, classes)) if regression else np.eye(classes)[rng.integers(classes, size=n)]
    return net, rng.normal(size=(classes, 5)), Site(x, t, softmax=not regression)


def task_of(data: Site) -> Task:
    return Classification() if data.softmax else Regression()


def features_of(net: Net, data: Site) -> Tensor:
    return torch.from_numpy(net.phi(data.x))


every_shape = pytest.mark.parametrize(
    ("n", "classes"),
    [(20, 3), (1, 3), (20, 1), (1, 1)],
    ids=["many", "one sample", "one output", "one of both"],
)
both_tasks = pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])


@every_shape
@both_tasks
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_of_a_plain_loop(rule: Rule, regression: bool, n: int, classes: int) -> None:
    net, W, data = site(n=n, classes=classes, regression=regression)
    start = {"head": torch.from_numpy(W.copy())}
    found = LinearHead(4, classes).descend(
        start, features_of(net, data), torch.from_numpy(data.t), task_of(data), 15, Descent(0.1, rule, 0.8)
    )
    assert torch.equal(start["head"], torch.from_numpy(W))
    adam, velocity = Adam(0.1), np.zeros_like(W)
    for _ in range(15):
        g = gradients(net, W, data)[2]
        velocity = 0.8 * velocity + g
        W = {"gd": W - 0.1 * g, "momentum": W - 0.1 * velocity, "adam": adam.step(W, g)}[rule]
    assert found.keys() == {"head"}
    assert distance(found["head"], W) < 1e-12


def test_no_step_gives_the_same_head_in_another_tensor() -> None:
    net, W, data = site(n=20, classes=3, regression=False)
    start = {"head": torch.from_numpy(W)}
    found = LinearHead(4, 3).descend(
        start, features_of(net, data), torch.from_numpy(data.t), task_of(data), 0, Descent(0.1)
    )
    assert torch.equal(found["head"], start["head"])
    found["head"] += 1
    assert not torch.equal(found["head"], start["head"])


@every_shape
@both_tasks
def test_loss_and_joint_gradient(regression: bool, n: int, classes: int) -> None:
    net, W, data = site(n=n, classes=classes, regression=regression)
    found = LinearHead(4, classes).gradient(
        {"head": torch.from_numpy(W)}, features_of(net, data), torch.from_numpy(data.t), task_of(data)
    )
    phi = net.phi(data.x)
    residual = link(phi @ W[:, :-1].T + W[:, -1], data.softmax) - data.t
    assert float(found.loss) == pytest.approx(loss(net, W, data), rel=1e-12, abs=1e-15)
    np.testing.assert_allclose(found.head["head"].numpy(), gradients(net, W, data)[2], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found.features.numpy(), residual @ W[:, :-1] / n, rtol=1e-12, atol=1e-15)


def test_a_single_class_leaves_nothing_to_learn() -> None:
    net, W, data = site(n=20, classes=1, regression=False)
    head, start = LinearHead(4, 1), {"head": torch.from_numpy(W)}
    features, targets = features_of(net, data), torch.from_numpy(data.t)
    assert float(head.gradient(start, features, targets, Classification()).loss) == 0
    for rule in RULES:
        found = head.descend(start, features, targets, Classification(), 5, Descent(1.0, rule))
        assert torch.equal(found["head"], start["head"])


def test_a_head_may_start_as_torchs_layer_does() -> None:
    head = LinearHead(400, 25).init("layer", torch.Generator().manual_seed(7), torch.float32)["head"]
    torch.manual_seed(7)
    layer = nn.Linear(400, 25)
    for ours, theirs in [(head[:, :-1], layer.weight), (head[:, -1], layer.bias)]:
        assert ours.abs().max() <= 1 / 20
        assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.3)
        assert abs(ours.mean().item()) < 0.02


def test_a_function_starts_the_head_and_is_told_its_shape() -> None:
    asked = []

    def ramp(rows: int, columns: int, generator: torch.Generator) -> Tensor:
        asked.append((rows, columns, generator.initial_seed()))
        return torch.arange(rows * columns).reshape(rows, columns)

    head = LinearHead(4, 3).init(ramp, torch.Generator().manual_seed(7), torch.float64)["head"]
    assert asked == [(3, 5, 7)]
    assert head.dtype == torch.float64
    assert head.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]


@pytest.mark.parametrize("shape", [(3, 4), (5, 3), (15,), (1, 3, 5)], ids=str)
def test_a_function_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(pflego.UserError, match=r"head_init gave shape .*, asked for \(3, 5\)"):
        LinearHead(4, 3).init(lambda *_: torch.zeros(shape), torch.Generator(), torch.float32)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_features_meet_a_float32_head(dtype: torch.dtype, rule: Rule) -> None:
    """What is left is the rounding of the features, 2^-8 of their size in bfloat16."""
    net, W, data = site(n=40, classes=3, regression=False)
    head, start = LinearHead(4, 3), {"head": torch.from_numpy(W).float()}
    features, targets = features_of(net, data).float(), torch.from_numpy(data.t).float()
    exact, rough = (
        head.descend(start, phi, targets, Classification(), 30, Descent(0.1, rule))["head"]
        for phi in (features, features.to(dtype))
    )
    assert rough.dtype == torch.float32
    assert distance(rough, exact.double().numpy()) < 2e-2
    gradient = head.gradient(start, features.to(dtype), targets, Classification())
    assert gradient.head["head"].dtype == gradient.features.dtype == torch.float32
    wanted = head.gradient(start, features, targets, Classification())
    assert distance(gradient.head["head"], wanted.head["head"].double().numpy()) < 2e-2
    assert distance(gradient.features, wanted.features.double().numpy()) < 2e-2
