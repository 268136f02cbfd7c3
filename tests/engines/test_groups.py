"""Many small clients in one pass: the same as one by one, to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.engines import local
from pflego.engines.base import Turn
from pflego.engines.local import LocalEngine
from pflego.exchange.round import Round, Update
from pflego.federation.roster import ClientId
from pflego.learning.problem import Problem
from pflego.learning.problems import Problems
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.support.cases import often
from tests.support.crowd import CLIENTS, Exponential, crowd
from tests.support.reference import assert_same_weights


def train(
    fed: pflego.Federation,
    algorithm: pflego.Algorithm,
    activation: nn.Module = nn.Softplus(),  # noqa: B008 - has no weights
    **options: object,
) -> Run:
    torch.manual_seed(0)
    model = pflego.Model(nn.Sequential(nn.Linear(6, 4), activation).double(), features=4)
    return pflego.train(fed, model, algorithm, **{"rounds": 3, **options})  # type: ignore[arg-type]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect how many clients each call of PFLEGO.group_update had, where there were several."""
    seen: list[int] = []
    original = pflego.PFLEGO.group_update

    def spy(
        self: pflego.PFLEGO,
        turns: Sequence[Round],
        shared: Weights,
        states: Sequence[Weights],
        problems: Sequence[Problem],
        weights: Sequence[float],
    ) -> tuple[list[Update], Weights]:
        if len(problems) > 1:
            seen.append(len(problems))
        return original(self, turns, shared, states, problems, weights)

    monkeypatch.setattr(pflego.PFLEGO, "group_update", spy)
    return seen


@pytest.mark.parametrize(
    "algorithm",
    often(
        [
            pflego.PFLEGO(steps=5),
            pflego.PFLEGO(steps=5, common_head=True),
            pflego.PFLEGO(steps=5, head_step="exact", server_optimizer="sgd", head_decay=0.2),
            pflego.PFLEGO(steps=5, head_optimizer="momentum"),
            pflego.PFLEGO(steps=5, server_lr="auto", server_optimizer="sgd"),
            pflego.PFLEGO(steps=5, passes=2, local_lr=0.1, common_head=True),
            pflego.PFLEGO(steps=5, batch_size=4, common_head=True),
        ],
    ),
    ids=["plain", "common head", "exact", "momentum", "auto", "passes", "batches"],
)
@pytest.mark.parametrize("weighting", often(["samples", "equal"]))
def test_together_is_one_by_one(
    algorithm: pflego.PFLEGO, weighting: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = train(crowd(), algorithm, weighting=weighting)
    assert sum(calls) == 3 * (CLIENTS - 1)
    assert len(calls) < 3 * 10
    monkeypatch.setattr(local, "_MANY", CLIENTS + 1)
    alone = train(crowd(), algorithm, weighting=weighting)
    assert sum(calls) == 3 * (CLIENTS - 1)
    assert_same_weights(together.shared, alone.shared, within=1e-12)
    for client in alone.states:
        assert_same_weights(together.states[client], alone.states[client], within=1e-9)
    for ours, theirs in zip(together.history, alone.history, strict=True):
        for key in theirs.keys() - {"seconds"}:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-9), key


def test_few_small_clients_stay_on_their_own(calls: list[int]) -> None:
    train(crowd(), pflego.PFLEGO(steps=2), participation=20)
    assert calls == []


@pytest.mark.parametrize(
    "options",
    often(
        [
            {"dropout": 0.1},
            {"deadline": 1.0},
            {"aggregation": pflego.Median()},
            {"transforms": [pflego.Clip(1.0)]},
        ],
        {"dropout": 0.1},
        {"aggregation": pflego.Median()},
    ),
    ids=str,
)
def test_where_more_than_a_sum_is_asked_for_everyone_sends_their_own(
    options: dict[str, object], calls: list[int]
) -> None:
    """Replies can be missing one by one, or a rule or a transform looks at each contribution."""
    train(crowd(), pflego.PFLEGO(steps=2), **options)  # type: ignore[arg-type]
    assert calls == []


def test_renormalising_needs_no_more_than_a_sum(calls: list[int]) -> None:
    ours = train(crowd(), pflego.PFLEGO(steps=2), missing="renormalise")
    assert calls
    assert_same_weights(ours.shared, train(crowd(), pflego.PFLEGO(steps=2)).shared)


@pytest.mark.parametrize("missing", often(["zero", "renormalise"]))
def test_who_breaks_is_found_and_left_out(
    missing: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(crowd(broken=7), pflego.PFLEGO(steps=2), Exponential(), missing=missing)
    assert calls
    assert [row["rejected"] for row in run.history] == [1, 1, 1]
    assert all(row["forward_passes"] == row["backward_passes"] == 1 for row in run.history)
    assert run.history[0]["bytes_up"] == (CLIENTS - 1) * 8 * 28
    assert all(tensor.isfinite().all() for tensor in run.shared.values())
    monkeypatch.setattr(local, "_MANY", CLIENTS + 1)
    alone = train(crowd(broken=7), pflego.PFLEGO(steps=2), Exponential(), missing=missing)
    assert_same_weights(run.shared, alone.shared, within=1e-12)


def test_a_method_that_changes_contributions_does_not_inherit_the_shortcut(calls: list[int]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Halved(pflego.PFLEGO):
        def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
            update = super().client_update(now, shared, state, problem)
            return replace(update, contribution={name: g / 2 for name, g in update.contribution.items()})

    half = train(crowd(), Halved(steps=2, server_lr=0.2, server_optimizer="sgd"), rounds=1)
    assert calls == []
    whole = train(crowd(), pflego.PFLEGO(steps=2, server_lr=0.1, server_optimizer="sgd"), rounds=1)
    assert calls == [CLIENTS - 1]
    assert_same_weights(half.shared, whole.shared, within=1e-12)


def test_a_client_with_an_answer_of_its_own_works_on_its_own(calls: list[int]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Answering(pflego.PFLEGO):
        def answers(
            self, now: Round, shared: Weights, server: Weights, clients: Sequence[ClientId]
        ) -> dict[ClientId, Weights]:
            return {client: {} if client == 3 else {"word": torch.ones(1)} for client in clients}

        def server_step(
            self, now: Round, shared: Weights, server: Weights, aggregate: Weights
        ) -> tuple[Weights, Weights]:
            assert "word" not in shared
            return super().server_step(now, shared, server, aggregate)

    train(crowd(), Answering(steps=2))
    assert calls == []


def turns(clients: int) -> list[Turn]:
    return [Turn(position, Round(1), 1 / clients) for position in range(clients)]


@pytest.mark.parametrize("sizes", [[256] * 50, [257] * 60, [1] * 60, [200, 300] * 50, [10] * 49])
def test_groups_hold_everyone_once_and_not_too_much(sizes: list[int]) -> None:
    fed = pflego.Federation(
        [pflego.Client(i, np.zeros((n, 2), np.float32), np.arange(n) % 2) for i, n in enumerate(sizes)]
    )
    problems = Problems(fed, pflego.Model(nn.Identity(), features=2))
    found = LocalEngine(problems, pflego.PFLEGO(), {})._groups(turns(len(sizes)))
    groups = [[turn.position for turn in group] for group in found]
    assert sorted(position for group in groups for position in group) == list(range(len(sizes)))
    for group in groups:
        assert len(group) == 1 or sum(sizes[position] for position in group) <= 2048
        assert len(group) == 1 or all(sizes[position] <= 256 for position in group)
    if sum(n <= 256 for n in sizes) < 50:
        assert len(groups) == len(sizes)


@pytest.mark.parametrize("backbone", [nn.Conv2d(1, 4, 1), nn.Linear(2000, 2000)])
def test_where_activations_are_large_groups_are_small(backbone: nn.Module) -> None:
    fed = pflego.Federation(
        [pflego.Client(i, np.zeros((20, 2), np.float32), np.arange(20) % 2) for i in range(60)]
    )
    problems = Problems(fed, pflego.Model(backbone, features=2))
    groups = LocalEngine(problems, pflego.PFLEGO(), {})._groups(turns(60))
    assert max(len(group) for group in groups) * 20 <= 256


@pytest.mark.parametrize("common", [False, True])
def test_compiled_loops_for_a_group_are_those_for_one(common: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 heads of a group go through compiled loops together; what is kept is each client's alone."""

    def trained() -> Run:
        torch.manual_seed(0)
        model = pflego.Model(nn.Sequential(nn.Linear(6, 4), nn.Softplus()), features=4)
        return pflego.train(crowd(), model, pflego.PFLEGO(steps=5, common_head=common), rounds=3)

    together = trained()
    monkeypatch.setattr(local, "_MANY", CLIENTS + 1)
    alone = trained()
    assert_same_weights(together.shared, alone.shared, within=1e-5)
    for client, state in alone.states.items():
        assert_same_weights(together.states[client], state, within=1e-4)
        assert all(w.untyped_storage().nbytes() == w.nbytes for w in together.states[client].values())
    ours, theirs = together.evaluate(), alone.evaluate()
    assert [row["accuracy"] for row in ours] == [row["accuracy"] for row in theirs]
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], rel=1e-4)


@pytest.mark.parametrize("regression", [False, True])
def test_a_client_without_test_data_is_in_no_pass(regression: bool) -> None:
    rng = np.random.default_rng(1)

    def client(i: int) -> pflego.Client:
        x = rng.normal(size=(6, 6))
        y = x[:, 0] if regression else np.arange(6) % 2
        return pflego.Client(i, x, y, x[: i % 3], y[: i % 3])

    run = train(pflego.Federation([client(i) for i in range(CLIENTS)]), pflego.PFLEGO(steps=2))
    assert [row["samples"] for row in run.evaluate()] == [i % 3 for i in range(CLIENTS)]
    assert all((row["loss"] is None) == (row["samples"] == 0) for row in run.evaluate())
