from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import pflego
from pflego.engines.base import Turn
from pflego.engines.local import LocalEngine
from pflego.engines.play import Exchange
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.learning.problems import Problems
from pflego.weights import Weights
from tests.support.reference import World, world


def engine_of(twin: World, algorithm: pflego.Algorithm) -> LocalEngine:
    problems = Problems(twin.federation, twin.model)
    states = {client: algorithm.init_state(problems[i], 0) for i, client in enumerate(twin.federation.ids)}
    return LocalEngine(problems, algorithm, states)


def test_the_order_of_clients_changes_nothing() -> None:
    twin = world(dtype=torch.float32)
    algorithm = pflego.PFLEGO(steps=10)
    engine = engine_of(twin, algorithm)
    exchange = Exchange.of(algorithm, twin.federation.sizes, expected=3)
    shared = twin.model.weights()
    results = []
    for order in ([0, 2, 4], [4, 0, 2], [2, 4, 0]):
        work = engine.run(exchange.turns(exchange.round(1), order), shared)
        assert [outcome.position for outcome in work.outcomes] == [0, 2, 4]
        played = exchange.play(
            engine, 1, shared, {}, order, ids=twin.federation.ids, keep=lambda changed: None
        )
        heads = {f"head {client}": state["head"] for client, state in played.states.items()}
        losses = torch.tensor([outcome.metrics["loss"].total for outcome in work.outcomes])
        results.append({**played.shared, **played.server, **heads, "losses": losses})
    first = results[0]
    for result in results[1:]:
        assert list(result) == list(first)
        assert all(torch.equal(result[name], first[name]) for name in first)


def test_a_client_does_not_depend_on_who_is_in_its_cohort() -> None:
    twin = world()
    algorithm = pflego.PFLEGO(steps=3)
    engine, shared = engine_of(twin, algorithm), twin.model.weights()
    exchange = Exchange.of(algorithm, twin.federation.sizes, expected=3)

    def turn(cohort: list[int]) -> Turn:
        [own] = [t for t in exchange.turns(exchange.round(1), cohort) if t.position == 2]
        return own

    assert turn([2]) == turn([0, 2, 4])  # unbiased: w_i is a_i I/r, whoever else is there
    [alone], [_, beside, _] = (
        engine.run(exchange.turns(exchange.round(1), cohort), shared).outcomes for cohort in ([2], [0, 2, 4])
    )
    assert torch.equal(alone.state["head"], beside.state["head"])
    assert alone.metrics == beside.metrics
    assert alone.contribution is not None
    assert beside.contribution is not None
    assert all(torch.equal(alone.contribution[name], g) for name, g in beside.contribution.items())


@pytest.mark.parametrize(
    "name", ["round", "loss", "test", "seconds", "bytes_up", "missing", "forward_passes", "everyone_accuracy"]
)
def test_a_metric_of_ones_own_is_not_called_like_a_column_that_is_there(name: str) -> None:
    class Careless(pflego.FedPer):
        def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
            update = super().client_update(now, shared, state, problem)
            return replace(update, metrics={name: pflego.metrics.total(1)})

    twin = world()
    with pytest.raises(pflego.SettingError, match=name):
        pflego.train(twin.federation, twin.model, Careless(steps=1), rounds=1)
