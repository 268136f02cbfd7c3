"""Nearest neighbours beside models of any method, against a NumPy float64 version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego.after.neighbours import Choice, Memory, Search, evaluate, scores
from pflego.algorithms import methods
from pflego.engines.local import LocalEngine
from pflego.randomness import torch_generator
from tests.support.reference import F64, link, world

SEED = 3
SEARCH = Search(neighbours=(1, 2, 4), shares=(0.0, 0.3, 0.7, 1.0), held_out=0.3)


def vote(features: F64, remembered: F64, targets: F64, k: int) -> F64:
    """The targets of the k nearest, by e^(-d^2 / M), one sample at a time."""
    answers = []
    for phi in features:
        squares = ((remembered - phi) ** 2).sum(axis=1)
        nearest = np.argsort(squares, kind="stable")[:k]
        weights = np.exp(-squares[nearest] / len(phi))
        answers.append(weights @ targets[nearest] / weights.sum())
    return np.array(answers)


def judged(p: F64, t: F64, softmax: bool) -> tuple[float, float]:
    """What is compared first, and the loss: both are better the smaller."""
    if not softmax:
        return float(((p - t) ** 2).mean(axis=1).sum()), float(((p - t) ** 2).sum(axis=1).mean() / 2)
    right = t[np.arange(len(p)), p.argmax(axis=1)].sum()
    tiny = np.finfo(np.float64).tiny
    return -float(right), float(-np.log(np.maximum((p * t).sum(axis=1), tiny)).mean())


def by_hand(run: pflego.Run, i: int, search: Search) -> tuple[Choice, F64]:
    """A client's choice, and what it says of its test samples."""
    client, problem = run.federation[i], run.problems[i]
    weights = LocalEngine(run.problems, run.algorithm, run.states).personal(run.shared, problem)
    V, v, W = (weights[name].numpy() for name in ("0.weight", "0.bias", "head"))
    train, test = (np.tanh(x.numpy() @ V.T + v) for x in (client.x_train, client.x_test))
    targets, softmax = problem.targets.numpy(), run.federation.classes is not None
    alone = link(train @ W[:, :-1].T + W[:, -1], softmax)
    n = len(train)
    generator = torch_generator(SEED, "held out of the neighbours", client=client.id)
    order = torch.randperm(n, generator=generator).numpy()
    held = min(max(1, round(search.held_out * n)), n - 1)
    tried, kept = order[:held], order[held:]
    best, choice = (np.inf, np.inf), Choice(0, 0.0)
    for k in search.neighbours:
        near = vote(train[tried], train[kept], targets[kept], k)
        for share in search.shares:
            cost = judged(share * near + (1 - share) * alone[tried], targets[tried], softmax)
            if cost[0] < best[0] - 1e-12 or (abs(cost[0] - best[0]) < 1e-12 and cost[1] < best[1] - 1e-13):
                best, choice = cost, Choice(k, share)
    near = vote(test, train, targets, choice.neighbours)
    z = link(test @ W[:, :-1].T + W[:, -1], softmax)
    return choice, choice.share * near + (1 - choice.share) * z


def trained(method: pflego.Algorithm, *, regression: bool = False) -> pflego.Run:
    twin = world(regression=regression)
    return pflego.train(twin.federation, twin.model, method, rounds=2, participation=3, seed=SEED)


@pytest.mark.parametrize("name", ["fedavg", "feddbe", "fedper", "fedproto", "ditto"])
@pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
def test_choices_and_figures_are_those_of_numpy(name: str, regression: bool) -> None:
    options: dict[str, Any] = {"steps": 3, "client_lr": 0.1}
    run = trained(methods()[name](**options), regression=regression)
    choices = []
    for i, (client, score) in enumerate(zip(run.federation, scores(run, SEARCH), strict=True)):
        choice, p = by_hand(run, i, SEARCH)
        choices.append(choice)
        problem = run.problems[i]
        weights = LocalEngine(run.problems, run.algorithm, run.states).personal(run.shared, problem)
        assert Memory.of(problem, weights).choose(SEARCH, SEED) == choice
        t = problem.task.targets(client.y_test, problem.classes, torch.float64).numpy()
        cost, loss = judged(p, t, not regression)
        assert score.score == pytest.approx(abs(cost), rel=1e-9)
        assert score.loss == pytest.approx(loss, rel=1e-8)
        assert score.samples == len(client.x_test)
    assert len(set(choices)) > 1


def test_rows_are_like_those_of_every_evaluation() -> None:
    run = trained(pflego.FedAvg(steps=3, client_lr=0.1))
    rows = evaluate(run, SEARCH)
    assert [row["id"] for row in rows] == run.federation.ids
    assert [row["accuracy"] for row in rows] == [s.value(run.federation.task) for s in scores(run, SEARCH)]


def test_without_a_share_of_the_neighbours_it_is_the_model_alone() -> None:
    run = trained(pflego.FedPer(steps=3, client_lr=0.1))
    for ours, theirs in zip(evaluate(run, Search(shares=(0.0,))), run.evaluate(), strict=True):
        assert ours["accuracy"] == theirs["accuracy"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)


def test_adapting_comes_before_the_neighbours() -> None:
    run = trained(pflego.FedAvg(steps=3, client_lr=0.5))
    ours = evaluate(run, Search(shares=(0.0,)), adapt=True)
    assert [row["accuracy"] for row in ours] == [row["accuracy"] for row in run.evaluate(adapt=True)]


def test_a_model_that_knows_nobody_is_helped_by_neighbours() -> None:
    federation = pflego.load("digits", clients=10, classes_per_client=2, seed=1)
    run = pflego.train(
        federation, pflego.models.build("mlp", (64,)), pflego.FedAvg(steps=5), rounds=3, participation=5
    )
    figures = [np.mean([row["accuracy"] for row in rows]) for rows in (run.evaluate(), evaluate(run))]
    assert figures[0] < 0.6 < 0.95 < figures[1]


def test_one_sample_and_no_test_data_are_enough() -> None:
    x = torch.randn(1, 3)
    clients = [
        pflego.Client("one", x, torch.tensor([0]), x, torch.tensor([0])),
        pflego.Client("none", torch.randn(8, 3), torch.arange(8) % 2),
    ]
    model = pflego.Model(torch.nn.Linear(3, 2), features=2)
    run = pflego.train(pflego.Federation(clients), model, pflego.FedAvg(steps=2), rounds=1)
    one, none = evaluate(run)
    assert one["samples"] == 1
    assert none["accuracy"] is None


def test_more_neighbours_than_samples_are_all_of_them() -> None:
    run = trained(pflego.FedAvg(steps=3, client_lr=0.1))
    few, many = (scores(run, Search(neighbours=(k,), shares=(1.0,))) for k in (27, 10**6))
    assert few == many


@pytest.mark.parametrize(
    "wrong", [{"neighbours": ()}, {"neighbours": (0,)}, {"shares": (1.5,)}, {"held_out": 1.0}]
)
def test_what_cannot_be_searched_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(pflego.SettingError, match=next(iter(wrong))):
        Search(**wrong)
