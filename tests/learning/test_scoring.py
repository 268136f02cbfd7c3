"""Results of many clients from one pass are those of each alone, and NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.learning.problem import Problem
from pflego.learning.problems import Problems
from pflego.learning.scoring import scores_together
from pflego.weights import Weights

SIZES, CLASSES = (3, 0, 5, 4, 1), (2, 2, 3, 2, 3)


def crowd(*, regression: bool) -> list[Problem]:
    rng = np.random.default_rng(8)

    def labels(n: int, k: int) -> object:
        return rng.standard_normal(n) if regression else np.arange(n) % k

    clients = [
        pflego.Client(i, rng.random((6, 4)), labels(6, k), rng.random((n, 4)), labels(n, 4))  # type: ignore[arg-type]
        for i, (n, k) in enumerate(zip(SIZES, CLASSES, strict=True))
    ]
    torch.manual_seed(1)
    problems = Problems(pflego.Federation(clients), pflego.Model(nn.Linear(4, 5).double(), features=5))
    return [problems[place] for place in range(len(clients))]


def models_of(problems: list[Problem]) -> list[Weights]:
    shared = problems[0].model.weights()
    return [{**shared, **problem.new_head("layer", 3)} for problem in problems]


@pytest.mark.parametrize("regression", [False, True])
def test_together_is_alone(regression: bool) -> None:
    problems = crowd(regression=regression)
    models = models_of(problems)
    together = scores_together(problems, models)
    alone = [problem.test(model) for problem, model in zip(problems, models, strict=True)]
    assert [one.samples for one in together] == list(SIZES)
    assert [one.loss for one in together] == pytest.approx([one.loss for one in alone])
    assert [one.score for one in together] == pytest.approx([one.score for one in alone])


def test_loss_and_hits_are_numpys() -> None:
    """Test labels go up to 3: those that a client has not trained on have no loss, and are no hits."""
    problems = crowd(regression=False)
    models = models_of(problems)
    for problem, model, score in zip(problems, models, scores_together(problems, models), strict=True):
        x, y = problem.client.x_test.numpy(), problem.client.y_test.numpy()
        head = model["head"].numpy()
        phi = x @ model["weight"].numpy().T + model["bias"].numpy()
        z = phi @ head[:, :-1].T + head[:, -1]
        known = y < problem.outputs
        losses = np.log(np.exp(z).sum(axis=1))[known] - z[known, y[known]]
        assert score.score == (z.argmax(axis=1) == y).sum()
        assert score.loss == (pytest.approx(losses.mean()) if known.any() else None)
