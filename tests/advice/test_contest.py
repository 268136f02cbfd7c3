from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.advice.contenders import contenders, costs
from pflego.advice.contest import Candidate, Contest, Split, evaluated, sample_scores
from pflego.advice.plan import plan, reckon
from pflego.advice.start import stop_after
from pflego.learning.task import Classification, Regression

A, B = pflego.PFLEGO(server_lr=0.1), pflego.PFLEGO(server_lr=0.2)


def contest(*splits: dict[Candidate, list[float]], regression: bool = False) -> Contest:
    made = [
        Split(np.arange(len(next(iter(scores.values())))), {c: np.array(s) for c, s in scores.items()})
        for scores in splits
    ]
    return Contest(Regression() if regression else Classification(), made, {})


def test_whoever_is_best_is_chosen_on_other_splits_than_it_is_measured_on() -> None:
    one, other = Candidate("own-heads", A, 5), Candidate("own-heads", B, 5)
    held = contest({one: [1, 1, 0], other: [0, 0, 0]}, {one: [0, 0, 0], other: [1, 0, 1]})
    fair = held.fair(["own-heads"])
    assert fair.chosen == (other, one)  # the second split's best on the first, and the other way round
    assert fair.scores.tolist() == [0, 0, 0, 0, 0, 0]
    assert held.best(["own-heads"]) in (one, other)
    assert held.figure(one) == pytest.approx(2 / 6)


def test_of_equals_the_one_that_trained_longest_is_taken() -> None:
    scores: dict[Candidate, list[float]] = {Candidate("own-heads", A, r): [1.0, 0.0] for r in (1, 4, 2)}
    assert contest(scores).best(["own-heads"]).round == 4


def test_in_regression_the_smallest_error_is_best_and_what_is_not_finite_never_is() -> None:
    good, bad, broken = (Candidate("one-model", A, r) for r in (1, 2, 3))
    held = contest({good: [1.0, 1.0], bad: [4.0, 4.0], broken: [np.inf, 0.0]}, regression=True)
    assert held.best(["one-model"]) == good
    assert held.figure(bad) == 2.0
    assert held.curve(good)[:2] == [(1, 1.0), (2, 2.0)]
    with pytest.raises(pflego.UserError, match="no finite figure at any rate"):
        contest({broken: [np.inf, 0.0]}, regression=True).best(["one-model"])


@pytest.mark.parametrize(("second", "expected"), [([1.0, 0.5], 1), ([1.0, 1.0], None), ([0.5, 1.0], None)])
def test_training_is_to_stop_early_where_more_of_it_did_harm_on_every_split(
    second: list[float], expected: int | None
) -> None:
    best, last = Candidate("own-heads", A, 1), Candidate("own-heads", A, 8)
    held = contest({best: [1.0], last: [0.9]}, {best: second[:1], last: second[1:]})
    assert stop_after(held, best) == expected


@pytest.mark.parametrize("rounds", [1, 2, 3, 8, 20, 300])
def test_evaluated_rounds_end_with_the_last(rounds: int) -> None:
    found = evaluated(rounds)
    assert found == sorted(set(found))
    assert found[0] >= 1
    assert found[-1] == rounds
    assert len(found) <= 8


@pytest.mark.parametrize(
    ("data", "method"),
    [
        ("digits", pflego.PFLEGO(steps=3, common_head=True)),
        ("digits", pflego.FedAvg(steps=2, labels="global")),
        ("digits", pflego.Local(steps=2)),
        ("diabetes", pflego.PFLEGO(steps=3)),
    ],
    ids=str,
)
def test_scores_of_samples_are_those_of_the_clients_own_models(data: str, method: pflego.Algorithm) -> None:
    federation = pflego.load(data, clients=5)
    model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]))
    run = pflego.train(federation, model, method, rounds=2, evaluate_every=None, progress=False)
    expected = []
    for client in federation:
        predicted = run.personal_model(client.id).predict(client.x_test)
        if data == "diabetes":
            expected.append((predicted.squeeze(1) - client.y_test).square())
        else:
            expected.append((predicted == client.y_test).float())
    assert sample_scores(run) == pytest.approx(torch.cat(expected).numpy(), rel=1e-4)


def small() -> tuple[pflego.Federation, pflego.Model]:
    federation = pflego.load("digits", clients=30)
    return federation, pflego.Model(nn.Sequential(nn.Linear(64, 8), nn.ReLU()), features=8)


def test_rates_are_parts_of_what_the_theory_allows() -> None:
    federation, model = small()
    found = {contender.name: contender for contender in contenders(model, federation, steps=50)}
    assert list(found) == ["alone", "alone-longer", "one-model", "own-heads", "common-head"]
    inverse = []
    for client in list(federation)[:9]:
        x = client.x_train.double().numpy()
        weight, bias = (p.detach().double().numpy() for p in model.backbone.parameters())
        features = np.maximum(x @ weight.T + bias, 0)
        phi = np.column_stack([features, np.ones(len(x))])
        inverse.append(2 / np.linalg.eigvalsh(phi.T @ phi / len(x))[-1])
    rates = [algorithm.settings()["client_lr"] for algorithm in found["one-model"].variants]
    assert rates == pytest.approx([part * np.median(inverse) for part in (0.3, 1.0, 0.1)], rel=0.05)
    assert [contender.passes for contender in found.values()] == [1, 50, 50, 1, 1]


def test_heads_that_are_trained_with_the_backbone_do_not_start_at_zero_in_classification() -> None:
    def starts(federation: pflego.Federation, model: pflego.Model) -> dict[str, object]:
        found = contenders(model, federation, steps=2)
        return {c.name: c.variants[0].settings()["head_init"] for c in found}

    digits, model = small()
    together = dict.fromkeys(["alone", "alone-longer", "one-model", "common-head"], "centred")
    assert starts(digits, model) == together | {"own-heads": "zeros"}
    other = pflego.Model(nn.Linear(64, 8), features=8, head=lambda m, k: nn.Linear(m, k))
    assert set(starts(digits, other).values()) == {"zeros"}
    diabetes = pflego.load("diabetes", clients=6)
    assert set(starts(diabetes, pflego.Model(nn.Linear(10, 8), features=8)).values()) == {"zeros"}


def test_with_one_step_a_round_there_is_one_way_to_be_alone_and_other_heads_have_no_common_one() -> None:
    federation, _ = small()
    model = pflego.Model(nn.Linear(64, 8), features=8, head=lambda m, k: nn.Linear(m, k))
    found = contenders(model, federation, steps=1)
    assert [contender.name for contender in found] == ["alone", "one-model", "own-heads"]


def test_a_smaller_budget_makes_a_shorter_contest_and_what_is_asked_for_stays() -> None:
    federation, model = small()
    competing = contenders(model, federation, steps=50)
    cost = costs(competing, federation, model, device="cpu")
    assert cost["one-model"].flops == pytest.approx(50 * cost["alone"].flops, rel=0.3)
    assert cost["one-model"].forward_passes == 50

    def planned(budget: float, **asked: int) -> tuple[int, int, float]:
        found = plan(cost, competing, federation, splits=2, budget=budget, **asked)
        return found.rounds, found.clients, found.seconds

    assert planned(1e9)[:2] == (20, 30)
    rounds, clients, seconds = planned(20)
    assert (rounds, clients) < (20, 30)
    assert seconds <= 20
    shortest = planned(1e-6)
    assert shortest[:2] == (8, 8)
    assert shortest[2] > 1e-6  # and it says so
    assert planned(1e-6, rounds=7, look_at=9)[:2] == (7, 9)
    once, twice = (
        reckon(cost, competing, clients=10, samples=70, rounds=rounds, splits=2) for rounds in (8, 16)
    )
    assert twice == pytest.approx(2 * once)
