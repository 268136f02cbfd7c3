"""Numbers stay finite where they can, and a client whose numbers do not is left out."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pflego
from pflego.learning.problems import Problems
from pflego.runs.run import Run
from pflego.weights import is_finite
from tests.support.cases import often
from tests.support.reference import F64, Net, Site, link, loss, world


def assert_all_finite(run: Run) -> None:
    for row in run.history:
        assert all(value is None or isfinite(value) for value in row.values()), row
    assert is_finite(run.shared)
    assert all(is_finite(state) for state in run.states.values())
    assert all(row["rejected"] == 0 for row in run.history)


def small_model(*, activation: nn.Module | None = None, dtype: torch.dtype = torch.float32) -> pflego.Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.Linear(6, 4)
    return pflego.Model(nn.Sequential(layer, activation or nn.Tanh()).to(dtype), features=4)


def scaled(federation: pflego.Federation, size: float) -> pflego.Federation:
    return pflego.Federation(
        [pflego.Client(c.id, c.x_train * size, c.y_train, c.x_test * size, c.y_test) for c in federation]
    )


def huge(rows: int, columns: int, _: torch.Generator) -> Tensor:
    """+-1e4, a different pattern in each row."""
    places = torch.arange(rows * columns).reshape(rows, columns)
    return torch.where(places % 3 == 0, -1e4, 1e4)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU()], ids=["bounded features", "features of 1e4"])
@pytest.mark.parametrize("head_init", ["zeros", huge], ids=["heads of 0", "heads of 1e4"])
@pytest.mark.parametrize("head_optimizer", ["gd", "momentum"])
@pytest.mark.parametrize("common_head", [False, True], ids=["own heads", "common head"])
def test_huge_inputs_and_logits(
    common_head: bool, head_optimizer: str, head_init: object, activation: nn.Module
) -> None:
    algorithm = pflego.PFLEGO(
        steps=10,
        head_init=head_init,  # type: ignore[arg-type]
        head_optimizer=head_optimizer,  # type: ignore[arg-type]
        common_head=common_head,
    )
    run = pflego.train(
        scaled(world().federation, 1e4), small_model(activation=activation), algorithm, rounds=5
    )
    assert_all_finite(run)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e8])
def test_the_loss_of_huge_logits_is_right(size: float) -> None:
    twin = world()
    for i, site in enumerate(twin.sites):
        W = size * np.random.default_rng(i).normal(size=twin.heads[i].shape)
        problem = Problems(twin.federation, twin.model)[i]
        found = problem.loss({**twin.model.weights(), "head": torch.from_numpy(W)})
        assert found == pytest.approx(loss(twin.net, W, site), rel=1e-12)


def test_a_class_with_one_sample() -> None:
    x = np.random.default_rng(0).normal(size=(9, 6))
    federation = pflego.Federation(
        [pflego.Client("rare", x, np.array([0] * 8 + [5]), x, np.array([0] * 8 + [5])), *world().federation]
    )
    run = pflego.train(federation, small_model(), pflego.PFLEGO(steps=20), rounds=30)
    assert_all_finite(run)
    assert run.personal_model("rare").predict(federation[0].x_test.float()).tolist() == [0] * 8 + [5]


def test_a_client_with_one_sample_has_nothing_to_learn() -> None:
    twin = world()
    federation = pflego.Federation(
        [pflego.Client("one", twin.sites[0].x[:1], np.array([2])), *twin.federation]
    )
    for common_head in (False, True):
        run = pflego.train(federation, small_model(), pflego.PFLEGO(common_head=common_head), rounds=3)
        assert_all_finite(run)


def separated() -> pflego.Federation:
    """Two classes at x = -1 and x = 1, in all six inputs."""
    x = np.repeat([[-1.0], [1.0]], 6, axis=1).repeat(5, axis=0)
    return pflego.Federation(
        [pflego.Client(i, x, np.arange(10) // 5, x, np.arange(10) // 5) for i in range(2)]
    )


def perfect(rows: int, columns: int, _: torch.Generator) -> Tensor:
    """The right class wins by thousands, given features that are the inputs."""
    return 1e3 * torch.tensor([[-1.0] * (columns - 1) + [0], [1.0] * (columns - 1) + [0]])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"head_optimizer": "momentum"},
        {"head_optimizer": "adam", "client_lr": 0.01},
        {"common_head": True},
        {"server_optimizer": "sgd", "server_lr": "auto"},
        {"server_optimizer": "sgd", "server_lr": "auto", "client_lr": 0.01},
    ],
    ids=str,
)
def test_a_loss_of_zero_stays_there(settings: dict[str, object]) -> None:
    layer = nn.Linear(6, 6, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(6))
    algorithm = pflego.PFLEGO(steps=5, head_init=perfect, **settings)  # type: ignore[arg-type]
    run = pflego.train(separated(), pflego.Model(layer, features=6), algorithm, rounds=3)
    assert_all_finite(run)
    assert [row["loss"] for row in run.history] == [0] * 3
    assert torch.equal(run.shared["weight"], torch.eye(6))
    assert run.history[-1]["everyone_accuracy"] == 1


@pytest.mark.parametrize("client_lr", often(["auto", 0.1]), ids=str)
@pytest.mark.parametrize("head_step", often(["paper", "exact"]))
def test_the_automatic_server_rate_where_theta_has_no_curvature(head_step: str, client_lr: object) -> None:
    """With heads of zero and no step on them before the joint one, theta has no slope and no curvature."""
    algorithm = pflego.PFLEGO(
        steps=1,
        client_lr=client_lr,  # type: ignore[arg-type]
        server_lr="auto",
        server_optimizer="sgd",
        head_step=head_step,  # type: ignore[arg-type]
    )
    run = pflego.train(world().federation, small_model(), algorithm, rounds=10)
    assert_all_finite(run)
    assert (run.history[-1]["loss"] or 9) < (run.history[0]["loss"] or 0)


@pytest.mark.parametrize("head", often([None, lambda m, k: nn.Linear(m, k)]), ids=["closed form", "module"])
@pytest.mark.parametrize("dtype", often([torch.float16, torch.bfloat16]), ids=str)
def test_half_precision_backbones_train_like_float32(dtype: torch.dtype, head: object) -> None:
    federation = pflego.load("digits", clients=5)

    def train(dtype: torch.dtype) -> Run:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            backbone = nn.Sequential(nn.Linear(64, 32), nn.Tanh()).to(dtype)
        model = pflego.Model(backbone, features=32, head=head)  # type: ignore[arg-type]
        return pflego.train(federation, model, pflego.PFLEGO(steps=10, client_lr=0.1), rounds=12)

    run, exact = train(dtype), train(torch.float32)
    assert_all_finite(run)
    losses = [row["loss"] or 0.0 for row in run.history]
    assert losses[-1] < 0.5 * losses[0]
    assert losses == pytest.approx([row["loss"] or 0.0 for row in exact.history], rel=0.03)
    assert all(w.dtype == torch.float32 for w in run.shared.values())
    assert all(w.dtype == torch.float32 for state in run.states.values() for w in state.values())
    accuracy, wanted = (r.history[-1]["everyone_accuracy"] or 0.0 for r in (run, exact))
    assert accuracy > wanted - 0.03
    assert run.personal_model(0).predict(federation[0].x_test).shape == federation[0].y_test.shape


def test_half_precision_in_slices() -> None:
    federation = pflego.load("digits", clients=5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(64, 32), nn.Tanh()).to(torch.bfloat16)
    model = pflego.Model(backbone, features=32)
    whole, sliced = (
        pflego.train(federation, model, pflego.PFLEGO(steps=10), rounds=5, slice_size=slice_size, memory=0)
        for slice_size in (None, 50)
    )
    assert_all_finite(sliced)
    assert [row["loss"] for row in sliced.history] == pytest.approx(
        [row["loss"] for row in whole.history], rel=0.01
    )


def test_half_precision_takes_inputs_as_large_as_its_features_allow() -> None:
    """Inputs of 200 and a mean gradient of about 100 are no numbers to be afraid of: float16 goes to 65,504."""
    rng = np.random.default_rng(0)
    y = np.arange(2000) % 2
    x = rng.normal(size=(2000, 6)) + 200
    federation = pflego.Federation([pflego.Client("a", x, y)])
    W = torch.tensor([[0.0, 0, 0, 0, 4], [1, 1, 1, 1, 0]])  # the first class always wins
    found = []
    for dtype in (torch.float32, torch.float16):
        model = small_model(activation=nn.Identity(), dtype=dtype)
        found.append(Problems(federation, model)[0].gradient({**model.weights(), "head": W}))
    exact, half = found
    for name, wanted in exact.items():
        torch.testing.assert_close(half[name], wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))


def linear_gradients(net: Net, W: F64, site: Site) -> tuple[F64, F64, F64]:
    """As the reference's, for features V x + v."""
    phi = site.x @ net.V.T + net.v
    residual = (link(phi @ W[:, :-1].T + W[:, -1], site.softmax) - site.t) / site.n
    dW = np.concatenate([residual.T @ phi, residual.sum(axis=0)[:, None]], axis=1)
    pre = residual @ W[:, :-1]
    return pre.T @ site.x, pre.sum(axis=0), dW


BAD = 1  # the position of the client whose inputs are too large; the check before training looks at the first


def with_a_bad_client(*, regression: bool = False) -> tuple[pflego.Federation, pflego.Model, list[Site], Net]:
    twin = world(regression=regression)
    members = list(twin.federation)
    bad = members[BAD]
    members[BAD] = pflego.Client(
        bad.id, bad.x_train.sign() * 1e38, bad.y_train, bad.x_test.sign() * 1e38, bad.y_test
    )
    layer = nn.Linear(6, 4)
    with torch.no_grad():
        layer.weight.copy_(4 * torch.from_numpy(twin.net.V))
        layer.bias.copy_(torch.from_numpy(twin.net.v))
    return (
        pflego.Federation(members),
        pflego.Model(layer, features=4),
        twin.sites,
        Net(4 * twin.net.V, twin.net.v),
    )


@pytest.mark.parametrize("missing", ["zero", "renormalise"])
def test_a_client_that_overflows_is_left_out_and_the_others_train_on(missing: str) -> None:
    federation, model, sites, net = with_a_bad_client()
    algorithm = pflego.PFLEGO(steps=4, client_lr=0.01, server_lr=0.02, server_optimizer="sgd")
    run = pflego.train(federation, model, algorithm, rounds=8, missing=missing)  # type: ignore[arg-type]

    alphas = [site.n / sum(s.n for s in sites) for site in sites]
    factor = 1 / (1 - alphas[BAD]) if missing == "renormalise" else 1
    heads = [np.zeros((site.t.shape[1], 5)) for site in sites]
    for _ in range(8):
        dV, dv = np.zeros((4, 6)), np.zeros(4)
        for i in {*range(5)} - {BAD}:
            for _ in range(3):
                heads[i] = heads[i] - 0.01 * linear_gradients(net, heads[i], sites[i])[2]
            gV, gv, gW = linear_gradients(net, heads[i], sites[i])
            heads[i] = heads[i] - 0.02 * gW
            dV, dv = dV + factor * alphas[i] * gV, dv + factor * alphas[i] * gv
        net = Net(net.V - 0.02 * dV, net.v - 0.02 * dv)

    np.testing.assert_allclose(run.shared["weight"].numpy(), net.V, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run.shared["bias"].numpy(), net.v, rtol=1e-4, atol=1e-5)
    for i, head in enumerate(heads):  # the bad client's is still zero
        np.testing.assert_allclose(run.states[f"c{i}"]["head"].numpy(), head, rtol=1e-4, atol=1e-5)
    for row in run.history:
        assert (row["participants"], row["rejected"], row["missing"]) == (5, 1, 0)
        assert row["bytes_up"] == 4 * 4 * (24 + 4)
        assert all(value is None or isfinite(value) for value in row.values())
    losses = [row["loss"] or 0.0 for row in run.history]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"client_lr": "auto"},
        {"client_lr": 0.01, "head_optimizer": "adam"},
        {"client_lr": "auto", "head_optimizer": "momentum"},
        {"client_lr": "auto", "common_head": True},
        {"client_lr": "auto", "server_lr": "auto", "server_optimizer": "sgd"},
    ],
    ids=str,
)
def test_it_is_left_out_whatever_the_settings(settings: dict[str, object]) -> None:
    federation, model, _, _ = with_a_bad_client()
    run = pflego.train(federation, model, pflego.PFLEGO(steps=4, **settings), rounds=4)  # type: ignore[arg-type]
    assert [row["rejected"] for row in run.history] == [1] * 4
    assert torch.equal(run.states[f"c{BAD}"]["head"], torch.zeros(3, 5))
    assert is_finite(run.shared)
    assert all(is_finite(state) for state in run.states.values())
    losses = [row["loss"] or 0.0 for row in run.history]
    assert losses[-1] < losses[0]


def test_a_round_of_the_bad_client_alone_changes_nothing() -> None:
    federation, model, _, _ = with_a_bad_client()
    first = model.weights()
    federation = pflego.Federation([federation[0], federation[BAD]])
    run = pflego.train(federation, model, pflego.PFLEGO(steps=3), rounds=12, participation=1)
    alone = [row for row in run.history if row["rejected"]]
    assert 0 < len(alone) < 12
    for row in alone:
        assert (row["loss"], row["participants_accuracy"], row["bytes_up"]) == (None, None, 0)
    assert is_finite(run.shared)
    assert not torch.equal(run.shared["weight"], first["weight"])


def test_in_regression_the_history_stays_finite_and_readable(tmp_path: Path) -> None:
    """The bad client's predictions are no numbers; the figures, and JSON, have no place for such."""
    federation, model, _, _ = with_a_bad_client(regression=True)
    run = pflego.train(federation, model, pflego.PFLEGO(steps=3), rounds=2, out=tmp_path)
    assert [row["rejected"] for row in run.history] == [1, 1]
    for row in run.history:
        assert all(value is None or isfinite(value) for value in row.values()), row

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_outputs_that_are_no_numbers_are_no_right_answers() -> None:
    """Trained on sound data, tried on inputs of 1e38: whatever the class, NaN is not it.

    The first layer gives two infinities there, the second their difference, in whatever order sums are taken.
    """
    x, y = np.random.default_rng(0).normal(size=(10, 6)), np.arange(10) % 2
    client = pflego.Client("a", x, y, np.full((10, 6), 1e38), y)
    first, second = nn.Linear(6, 2, bias=False), nn.Linear(2, 4, bias=False)
    with torch.no_grad():
        first.weight.zero_()
        first.weight[0, 0] = first.weight[1, 1] = 4
        second.weight.copy_(torch.tensor([[1.0, -1.0], [2.0, -1.0], [1.0, -2.0], [3.0, -1.0]]))
    model = pflego.Model(nn.Sequential(first, second), features=4)
    run = pflego.train(pflego.Federation([client]), model, pflego.PFLEGO(), rounds=1)
    assert run.personal_model("a")(client.x_test).isnan().all()
    assert run.evaluate()[0]["accuracy"] == 0
    assert run.history[0]["participants_accuracy"] == 0
