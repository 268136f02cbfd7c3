from __future__ import annotations

import torch

import pflego
from pflego.algorithms.base import Round
from pflego.engines.local import LocalEngine
from pflego.problem import Problems
from tests.reference import world


def test_the_order_of_clients_changes_nothing() -> None:
    twin = world(dtype=torch.float32)
    algorithm = pflego.PFLEGO(steps=10)
    problems = Problems(twin.federation, twin.model)
    states = {id: algorithm.init_state(problems[i], 0) for i, id in enumerate(twin.federation.ids)}
    engine = LocalEngine(problems, algorithm, states)
    round = Round(1, clients=5, expected=3, samples=twin.federation.samples, selected=3)
    shared = twin.model.weights()
    results = []
    for order in ([0, 2, 4], [4, 0, 2], [2, 4, 0]):
        outcomes = engine.run(round, shared, order)
        new, server = algorithm.server_update(round, shared, {}, [outcome.reply for outcome in outcomes])
        heads = {f"head {outcome.position}": outcome.state["head"] for outcome in outcomes}
        results.append(
            {**new, **server, **heads, "losses": torch.tensor([outcome.loss for outcome in outcomes])}
        )
    first = results[0]
    for result in results[1:]:
        assert list(result) == list(first)
        assert all(torch.equal(result[name], first[name]) for name in first)
