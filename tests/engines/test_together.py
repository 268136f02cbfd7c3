"""Many small clients in one pass: the same as one by one, to rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.algorithms.base import Round, Update
from pflego.engines import local
from pflego.engines.local import LocalEngine
from pflego.problem import Problem, Problems
from pflego.run import Run
from pflego.weights import Weights
from tests.reference import assert_same_weights

CLIENTS = 60


def federation(*, broken: int | None = None) -> pflego.Federation:
    rng = np.random.default_rng(0)
    clients = []
    for i in range(CLIENTS):
        n = 5 + i % 30 if i else 300  # one is large
        x = rng.normal(size=(n, 6))
        if i == broken:
            x[0] = 1e5
        classes = np.sort(rng.choice(5, 2 + i % 3, replace=False))
        clients.append(pflego.Client(i, x, classes[np.arange(n) % len(classes)], x[:2], classes[:2]))
    return pflego.Federation(clients)


class Exponential(nn.Module):
    """Overflows at 710."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)


def train(
    fed: pflego.Federation,
    algorithm: pflego.Algorithm,
    activation: nn.Module = nn.Softplus(),  # noqa: B008 - has no weights
    **options: object,
) -> Run:
    torch.manual_seed(0)
    model = pflego.Model(nn.Sequential(nn.Linear(6, 4), activation).double(), features=4)
    return pflego.train(fed, model, algorithm, rounds=3, **options)  # type: ignore[arg-type]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients each call of PFLEGO.together had."""
    seen: list[int] = []
    original = pflego.PFLEGO.together

    def spy(self: pflego.PFLEGO, round: Round, shared: Weights, states: object, problems: object) -> object:
        seen.append(len(problems))  # type: ignore[arg-type]
        return original(self, round, shared, states, problems)  # type: ignore[arg-type]

    monkeypatch.setattr(pflego.PFLEGO, "together", spy)
    return seen


@pytest.mark.parametrize(
    "algorithm",
    [
        pflego.PFLEGO(steps=5),
        pflego.PFLEGO(steps=5, common_head=True),
        pflego.PFLEGO(steps=5, head_step="exact", server_optimizer="sgd", head_decay=0.2),
        pflego.PFLEGO(steps=5, head_optimizer="momentum"),
    ],
    ids=["plain", "common head", "exact", "momentum"],
)
def test_together_is_one_by_one(
    algorithm: pflego.PFLEGO, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = train(federation(), algorithm)
    assert sum(calls) == 3 * (CLIENTS - 1)
    assert len(calls) < 3 * 10
    monkeypatch.setattr(local, "_MANY", CLIENTS + 1)
    alone = train(federation(), algorithm)
    assert sum(calls) == 3 * (CLIENTS - 1)
    assert_same_weights(together.shared, alone.shared, within=1e-12)
    for id in alone.states:
        assert_same_weights(together.states[id], alone.states[id], within=1e-9)
    for ours, theirs in zip(together.history, alone.history, strict=True):
        for key in theirs.keys() - {"seconds"}:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-9), key


def test_few_small_clients_stay_on_their_own(calls: list[int]) -> None:
    train(federation(), pflego.PFLEGO(steps=2), participation=20)
    assert calls == []


@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"deadline": 1.0}, {"missing": "renormalise"}])
def test_where_replies_can_be_missing_everyone_sends_their_own(
    options: dict[str, object], calls: list[int]
) -> None:
    train(federation(), pflego.PFLEGO(steps=2), **options)  # type: ignore[arg-type]
    assert calls == []


def test_who_breaks_is_found_and_left_out(calls: list[int]) -> None:
    run = train(federation(broken=7), pflego.PFLEGO(steps=2), Exponential())
    assert calls
    assert [row["rejected"] for row in run.history] == [1, 1, 1]
    assert all(row["forward_passes"] == row["backward_passes"] == 1 for row in run.history)
    assert run.history[0]["bytes_up"] == (CLIENTS - 1) * 8 * 28
    assert all(tensor.isfinite().all() for tensor in run.shared.values())


def test_a_method_that_changes_the_messages_does_not_inherit_the_shortcut(calls: list[int]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Halved(pflego.PFLEGO):
        def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
            update = super().client_update(round, shared, state, problem)
            return replace(update, message={name: g / 2 for name, g in update.message.items()})

    train(federation(), Halved(steps=2, server_optimizer="sgd"))
    assert calls == []


@pytest.mark.parametrize("sizes", [[256] * 50, [257] * 60, [1] * 60, [200, 300] * 50, [10] * 49])
def test_groups_hold_everyone_once_and_not_too_much(sizes: list[int]) -> None:
    fed = pflego.Federation(
        [pflego.Client(i, np.zeros((n, 2), np.float32), np.arange(n) % 2) for i, n in enumerate(sizes)]
    )
    problems = Problems(fed, pflego.Model(nn.Identity(), features=2))
    groups = LocalEngine(problems, pflego.PFLEGO(), {})._groups(range(len(sizes)))
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
    groups = LocalEngine(problems, pflego.PFLEGO(), {})._groups(range(60))
    assert max(len(group) for group in groups) * 20 <= 256
