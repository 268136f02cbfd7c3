from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pflego
from pflego.exchange.round import Round
from pflego.learning.heads import ModuleHead
from pflego.learning.problems import Problems
from pflego.learning.task import Classification, Regression, Task
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.runs.test_folder import StopAfter
from tests.support.cases import often
from tests.support.reference import F64, distance, link, loss, timeless, world

ALGORITHM = pflego.PFLEGO(steps=5, client_lr=0.2, server_lr=0.05, server_optimizer="sgd")


def two_layers(m: int, k: int) -> nn.Module:
    return nn.Sequential(nn.Linear(m, 8), nn.Tanh(), nn.Linear(8, k))


def one_layer(m: int, k: int) -> nn.Module:
    return nn.Linear(m, k)


class Scaled(nn.Module):
    """Its own parameter, which no layer draws."""

    def __init__(self, m: int, k: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(m))
        self.last = nn.Linear(m, k)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(x * self.scale)
        return y


def with_head(model: pflego.Model, head: type[nn.Module] | object) -> pflego.Model:
    return pflego.Model(model.backbone, model.features, head=head)  # type: ignore[arg-type]


def first_states(model: pflego.Model, federation: pflego.Federation, seed: int) -> list[Weights]:
    problems = Problems(federation, model)
    return [ALGORITHM.init_state(problems[i], seed) for i in range(len(federation))]


def assert_identical(ours: Run, theirs: Run) -> None:
    assert timeless(ours.history) == timeless(theirs.history)
    for mine, other in [
        (ours.shared, theirs.shared),
        *((ours.states[i], theirs.states[i]) for i in ours.states),
    ]:
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)


@pytest.mark.parametrize("regression", often([False, True]), ids=["classification", "regression"])
def test_a_deep_head_trains(regression: bool) -> None:
    twin = world(regression=regression)
    run = pflego.train(twin.federation, with_head(twin.model, two_layers), ALGORITHM, rounds=25)
    losses = [row["loss"] or 0.0 for row in run.history]
    assert losses[-1] < 0.75 * losses[0]
    for i, site in enumerate(twin.sites):
        state = run.states[f"c{i}"]
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        k = site.t.shape[1]
        assert shapes == {
            "head.0.weight": (8, 4), "head.0.bias": (8,), "head.2.weight": (k, 8), "head.2.bias": (k,)
        }  # fmt: skip
    assert [(row["forward_passes"], row["backward_passes"]) for row in run.history] == [(1, 1)] * 25


@pytest.mark.parametrize("head_optimizer", ["gd", "momentum", "adam"])
def test_head_steps_go_downhill_by_every_rule(head_optimizer: str) -> None:
    twin = world()
    model = with_head(twin.model, two_layers)
    algorithm = pflego.PFLEGO(steps=20, client_lr=0.02, head_optimizer=head_optimizer)  # type: ignore[arg-type]
    shared = model.weights()
    for i, state in enumerate(first_states(model, twin.federation, 0)):
        problem = Problems(twin.federation, model)[i]
        before = problem.loss({**shared, **state})
        assert problem.loss({**shared, **algorithm.adapt(shared, state, problem)}) < before


def test_only_thetas_gradient_leaves_the_client() -> None:
    twin = world()
    model = with_head(twin.model, two_layers)
    problem = Problems(twin.federation, model)[0]
    state = first_states(model, twin.federation, 0)[0]
    update = ALGORITHM.client_update(Round(1), model.weights(), state, problem)
    assert update.contribution.keys() == {"0.weight", "0.bias"}
    assert update.state.keys() == state.keys()


def drawn_like_a_layer(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """What nn.Linear draws first, in the linear head's form."""
    with torch.random.fork_rng():
        torch.manual_seed(generator.initial_seed())
        layer = nn.Linear(columns - 1, rows)
    return torch.cat([layer.weight, layer.bias[:, None]], dim=1)


@pytest.mark.parametrize("server_optimizer", often(["sgd", "adam"]))
@pytest.mark.parametrize("head_optimizer", ["gd", "momentum", "adam"])
@pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
def test_a_linear_module_follows_the_closed_form(
    regression: bool, head_optimizer: str, server_optimizer: str
) -> None:
    twin = world(regression=regression)
    settings = {
        "steps": 5, "client_lr": 0.02, "server_lr": 0.05,
        "head_optimizer": head_optimizer, "server_optimizer": server_optimizer,
    }  # fmt: skip
    module = pflego.train(
        twin.federation,
        with_head(twin.model, one_layer),
        pflego.PFLEGO(**settings),  # type: ignore[arg-type]
        rounds=6,
        participation=3,
    )
    closed = pflego.train(
        twin.federation,
        twin.model,
        pflego.PFLEGO(**settings, head_init=drawn_like_a_layer),  # type: ignore[arg-type]
        rounds=6,
        participation=3,
    )
    for name, w in closed.shared.items():
        assert distance(module.shared[name], w.numpy()) < 1e-10
    for id in twin.federation.ids:
        state = module.states[id]
        whole = torch.cat([state["head.weight"], state["head.bias"][:, None]], dim=1)
        assert distance(whole, closed.states[id]["head"].numpy()) < 1e-10
    for mine, theirs in zip(module.history, closed.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-10)
        assert mine["participants_accuracy" if not regression else "participants_rmse"] == pytest.approx(
            theirs["participants_accuracy" if not regression else "participants_rmse"], rel=1e-10
        )


def test_first_weights_are_a_function_of_seed_and_client() -> None:
    twin = world(clients=4)  # the first and the last hold two classes each: heads of one shape
    model = with_head(twin.model, two_layers)
    one = first_states(model, twin.federation, 1)
    torch.manual_seed(99)
    again = first_states(with_head(twin.model, two_layers), twin.federation, 1)
    other = first_states(model, twin.federation, 2)
    for mine, same, different in zip(one, again, other, strict=True):
        for name in mine:
            assert torch.equal(mine[name], same[name])
            assert not torch.equal(mine[name], different[name])
    assert not any(torch.equal(one[0][name], one[3][name]) for name in one[0])
    backwards = pflego.Federation(list(twin.federation)[::-1])
    moved = first_states(model, backwards, 1)[::-1]
    assert all(torch.equal(one[i][name], moved[i][name]) for i in range(4) for name in one[i])


def test_parameters_that_no_layer_draws_do_not_depend_on_the_global_random_state_either() -> None:
    twin = world(clients=1)
    torch.manual_seed(1)
    one = first_states(with_head(twin.model, Scaled), twin.federation, 0)[0]
    torch.manual_seed(2)
    other = first_states(with_head(twin.model, Scaled), twin.federation, 0)[0]
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_global_random_state_is_left_alone() -> None:
    twin = world()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    pflego.train(twin.federation, with_head(twin.model, two_layers), ALGORITHM, rounds=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_buffers_are_refused() -> None:
    twin = world()
    model = with_head(twin.model, lambda m, k: nn.Sequential(nn.BatchNorm1d(m), nn.Linear(m, k)))
    with pytest.raises(pflego.UserError, match="a head must not have buffers"):
        pflego.train(twin.federation, model, ALGORITHM, rounds=1)


@pytest.mark.parametrize("head_init", ["uniform", drawn_like_a_layer], ids=["uniform", "function"])
def test_a_module_starts_itself(head_init: object) -> None:
    twin = world()
    algorithm = pflego.PFLEGO(head_init=head_init)  # type: ignore[arg-type]
    with pytest.raises(pflego.UserError, match="head_init is for linear heads"):
        pflego.train(twin.federation, with_head(twin.model, two_layers), algorithm, rounds=1)


def test_a_common_head_must_be_linear() -> None:
    twin = world()
    with pytest.raises(pflego.UserError, match="common_head=True needs linear heads"):
        pflego.train(
            twin.federation, with_head(twin.model, two_layers), pflego.PFLEGO(common_head=True), rounds=1
        )


def outputs(run: Run, id: str, x: F64) -> F64:
    theta, state = run.shared, run.states[id]
    phi = np.tanh(x @ theta["0.weight"].numpy().T + theta["0.bias"].numpy())
    hidden = np.tanh(phi @ state["head.0.weight"].numpy().T + state["head.0.bias"].numpy())
    return np.asarray(hidden @ state["head.2.weight"].numpy().T + state["head.2.bias"].numpy())


def test_a_client_takes_the_whole_model_home() -> None:
    twin = world()
    run = pflego.train(twin.federation, with_head(twin.model, two_layers), ALGORITHM, rounds=5)
    for i, (row, site) in enumerate(zip(run.evaluate(), twin.sites, strict=True)):
        client, personal = twin.federation[i], run.personal_model(f"c{i}")
        z = outputs(run, f"c{i}", site.x[:4])
        assert distance(personal(client.x_test).detach(), z) < 1e-12
        predicted = client.classes.numpy()[z.argmax(axis=1)]
        assert personal.predict(client.x_test).tolist() == predicted.tolist()
        p = link(z, True)
        assert row["loss"] == pytest.approx(-np.log((p * site.t[:4]).sum(axis=1)).mean(), rel=1e-10)
        assert row["accuracy"] == (predicted == client.y_test.numpy()).mean()


def test_an_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)

    def train(out: Path, *, resume: bool = False, callbacks: list[pflego.Callback] | None = None) -> Run:
        return pflego.train(
            twin.federation,
            with_head(twin.model, two_layers),
            ALGORITHM,
            rounds=8,
            participation=2,
            out=tmp_path / out,
            resume=resume,
            callbacks=callbacks or [],
        )

    whole = train(Path("whole"))
    with pytest.raises(KeyboardInterrupt):
        train(Path("cut"), callbacks=[StopAfter(3)])
    assert_identical(train(Path("cut"), resume=True), whole)


@pytest.mark.parametrize("task", [Classification(), Regression()], ids=["classification", "regression"])
def test_a_linear_modules_curvature_is_at_most_the_bound_of_the_linear_head(task: Task) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    targets = torch.eye(3, dtype=torch.float64)[torch.arange(30) % 3]
    module = ModuleHead(nn.Linear(4, 3))
    phi = np.concatenate([features.numpy(), np.ones((30, 1))], axis=1)
    bound = task.curvature * float(np.linalg.eigvalsh(phi.T @ phi / 30)[-1])
    for size in (0.0, 0.1, 1.0, 10.0):
        weights = {
            "head.weight": size * torch.randn(3, 4, generator=generator, dtype=torch.float64),
            "head.bias": size * torch.randn(3, generator=generator, dtype=torch.float64),
        }
        found = module.smoothness(weights, features, targets, task)
        assert found <= bound * (1 + 1e-12)
        if isinstance(task, Regression):  # the same everywhere, and no bound but the thing itself
            assert found == pytest.approx(bound, rel=1e-2)


@pytest.mark.parametrize("client_lr", ["auto", 0.1], ids=str)
def test_a_client_with_a_single_class_has_nothing_to_learn(client_lr: float) -> None:
    """Its loss is zero at every head, flat and without curvature."""
    twin = world(clients=2)
    lonely = pflego.Client("lonely", twin.sites[0].x, np.full(twin.sites[0].n, 3))
    model = with_head(twin.model, two_layers)
    federation = pflego.Federation([lonely, *twin.federation])
    algorithm = pflego.PFLEGO(steps=3, client_lr=client_lr)
    run = pflego.train(federation, model, algorithm, rounds=2)
    first = first_states(model, federation, 0)[0]
    assert all(torch.equal(run.states["lonely"][name], first[name]) for name in first)


@pytest.mark.parametrize("head", [None, one_layer], ids=["closed form", "module"])
def test_small_gradients_survive_a_half_precision_backbone(head: object) -> None:
    """The head is right by far: most slopes, divided by 2,000 samples, are below float16's smallest, 6e-8."""
    y = np.arange(2000) % 2
    x = np.random.default_rng(0).normal(size=(2000, 4)) + 3 * (2 * y[:, None] - 1)
    federation = pflego.Federation([pflego.Client("a", x, y)])
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4) / 2)
        layer.bias.zero_()
    weight, bias = torch.tensor([[-2.0] * 4, [2.0] * 4]), torch.zeros(2)
    state = (
        {"head": torch.cat([weight, bias[:, None]], dim=1)}
        if head is None
        else {"head.weight": weight, "head.bias": bias}
    )
    found = []
    for dtype in (torch.float32, torch.float16):
        backbone = nn.Sequential(layer, nn.Tanh()).to(dtype)
        model = pflego.Model(backbone, features=4, head=head)  # type: ignore[arg-type]
        found.append(Problems(federation, model)[0].gradient({**model.weights(), **state}))
    exact, half = found
    for name, wanted in exact.items():
        assert half[name].dtype == torch.float32
        assert distance(half[name], wanted.double().numpy()) < 0.02


def test_the_yardstick_of_the_loss() -> None:
    """A linear module's loss is the reference's."""
    twin = world()
    model = with_head(twin.model, one_layer)
    for i, state in enumerate(first_states(model, twin.federation, 0)):
        W = np.concatenate([state["head.weight"].numpy(), state["head.bias"].numpy()[:, None]], axis=1)
        found = Problems(twin.federation, model)[i].loss({**model.weights(), **state})
        assert found == pytest.approx(loss(twin.net, W, twin.sites[i]), rel=1e-12)
