"""client_lr="auto" where the smoothness constant changes from head to head: every step is held to the condition."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import pflego
from pflego.exchange.round import Round
from pflego.learning.heads import Descent
from pflego.learning.heads.downhill import steps_downhill
from pflego.learning.problem import Problem
from pflego.learning.problems import Problems
from pflego.weights import Weights
from tests.support.cases import often


def one_hidden(m: int, k: int) -> nn.Module:
    return nn.Sequential(nn.Linear(m, 32), nn.ReLU(), nn.Linear(32, k))


def two_hidden(m: int, k: int) -> nn.Module:
    return nn.Sequential(nn.Linear(m, 32), nn.ReLU(), one_hidden(32, k))


def digits(head: object) -> tuple[pflego.Federation, pflego.Model]:
    federation = pflego.load("digits", clients=6, classes_per_client=5, seed=0)
    backbone = pflego.models.build("mlp", (64,))
    return federation, pflego.Model(backbone.backbone, backbone.features, head=head)  # type: ignore[arg-type]


@pytest.mark.parametrize("head", often([one_hidden, two_hidden]), ids=["one hidden layer", "two"])
def test_the_automatic_rate_keeps_up_with_the_best_fixed_one(head: object) -> None:
    federation, model = digits(head)
    shared, problems = model.weights(), Problems(federation, model)

    def losses(rate: float | str) -> float:
        algorithm = pflego.PFLEGO(steps=50, client_lr=rate)  # type: ignore[arg-type]
        total = 0.0
        for i in range(len(federation)):
            problem = problems[i]
            state = algorithm.init_state(problem, 0)
            total += problem.loss({**shared, **algorithm.adapt(shared, state, problem)})
        return total / len(federation)

    best = min(losses(rate) for rate in (0.01, 0.1, 0.3, 1.0, 3.0))
    assert losses("auto") < 2 * best


@pytest.mark.parametrize("decay", often([0.0, 0.5]))
def test_no_step_goes_uphill(decay: float) -> None:
    federation, model = digits(two_hidden)
    problem = Problems(federation, model)[0]
    features = problem.forward(model.weights()).features
    head = {name: 3 * w for name, w in problem.new_head("layer", 0).items()}  # far from where layers start
    descent = Descent(rate=0.0, decay=decay)

    def objective(head: Weights) -> float:
        squares = sum(float(w.double().square().sum()) for w in head.values())
        return problem.head_loss(head, features) + decay / 2 * squares

    values = [objective(head)]
    for _ in range(30):
        head = steps_downhill(problem, head, features, 1, descent)
        values.append(objective(head))
    assert all(later <= earlier for earlier, later in pairwise(values))
    assert values[-1] < 0.5 * values[0]


class Steep(nn.Module):
    """z = w^4 phi: flat near zero, where 1/L is huge, and steep elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.3))

    def forward(self, phi: Tensor) -> Tensor:
        return self.w**4 * phi


def steep() -> tuple[Problem, Weights, Tensor]:
    x = torch.ones(5, 1, dtype=torch.float64)
    federation = pflego.Federation([pflego.Client(0, x, 16 * x)])  # the answer: w = 2
    model = pflego.Model(nn.Identity(), 1, head=lambda features, outputs: Steep())
    return Problems(federation, model)[0], {"head.w": torch.tensor(0.3, dtype=torch.float64)}, x


def test_a_head_that_starts_where_it_is_flat_finds_its_way() -> None:
    problem, head, x = steep()
    w, rate = 0.3, 1 / problem.head_smoothness(head, x)
    while w < 3:
        w -= rate * 4 * w**3 * (w**4 - 16)
    assert w > 10  # with the first 1/L, it jumps far past 2
    found = pflego.PFLEGO(steps=200).adapt({}, head, problem)["head.w"]
    assert abs(float(found) - 2) < 1e-6


def test_the_last_step_is_held_to_it_too_unless_it_is_exact() -> None:
    problem, head, x = steep()
    before = problem.head_loss(head, x)
    for head_step, downhill in [("paper", True), ("exact", False)]:
        algorithm = pflego.PFLEGO(steps=1, server_lr=100.0, server_optimizer="sgd", head_step=head_step)  # type: ignore[arg-type]
        update = algorithm.client_update(Round(1), {}, head, problem)
        assert ((update.loss or 0.0) < before) == downhill
    slope = 4 * 0.3**3 * (0.3**4 - 16)
    assert float(update.state["head.w"]) == pytest.approx(0.3 - 100 * slope, rel=1e-12)


def test_training_with_relu_heads_stays_finite() -> None:
    federation, model = digits(two_hidden)
    run = pflego.train(federation, model, pflego.PFLEGO(steps=20), rounds=5, participation=3)
    assert [row["rejected"] for row in run.history] == [0] * 5
    assert (run.history[-1]["loss"] or 9) < 0.6


@pytest.mark.parametrize("head", [one_hidden, two_hidden], ids=["one hidden layer", "two"])
def test_the_curvature_does_not_depend_on_the_order_of_a_states_names(head: object) -> None:
    """A state read from a file has its names in another order, and must lead to the same run."""
    federation, model = digits(head)
    problem = Problems(federation, model)[0]
    features, state = problem.forward(model.weights()).features, problem.new_head("layer", 0)
    turned = dict(reversed(state.items()))
    assert problem.head_smoothness(state, features) == problem.head_smoothness(turned, features)
