"""Parts of one's own, as a user would write them: methods, rules, a participation process.

Scalar methods learn one number w: z = w x with x = 1 and half the squared error to c_i, so that the slope of client i's
loss at w is w - c_i, and a round can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import pflego
from pflego import metrics
from pflego.exchange.round import Round, Update
from pflego.exchange.weighting import Kind
from pflego.federation.draws import Positions
from pflego.federation.roster import ClientId
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.weights import Weights, norm, weighted_sum

GOALS = {"a": (1.0, 1), "b": (4.0, 3), "c": (7.0, 4)}  # c_i and N_i of every client


def scalar_federation() -> pflego.Federation:
    """Make clients whose targets are all c_i, and one of them to test on."""
    one = np.ones((1, 1))
    return pflego.Federation(
        [
            pflego.Client(name, one.repeat(n, axis=0), np.full(n, goal), one, np.full(1, goal))
            for name, (goal, n) in GOALS.items()
        ]
    )


def scalar_model() -> pflego.Model:
    """x -> w x with w = 0."""
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    return pflego.Model(layer, features=1)


@dataclass(frozen=True, kw_only=True)
class Scalar(pflego.Algorithm):
    """What scalar methods have in common: w is shared, under a head that passes it on."""

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        return {**model.weights(), "head": torch.tensor([[1.0, 0.0]], dtype=torch.float64)}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        return {}

    def slope(self, shared: Weights, w: Tensor, problem: Problem) -> Tensor:
        return problem.gradient({"head": shared["head"], "weight": w})["weight"]


@dataclass(frozen=True, kw_only=True)
class TwoExchanges(Scalar):
    """FedDANE's shape: the mean slope first, then local steps that are corrected by it.

    w <- w - 1/2 (l_i'(w) - l_i'(w_t) + mean slope), twice: of these losses, each halves the distance to the best w.
    """

    exchanges: ClassVar[int] = 2

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        shared = super().init_shared(model, outputs, seed)
        return {**shared, "slope": torch.zeros_like(shared["weight"])}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        at_start = self.slope(shared, shared["weight"], problem)
        if now.exchange == 0:
            return Update({"visits": state.get("visits", torch.zeros(1)) + 1}, {"slope": at_start})
        w = shared["weight"]
        for _ in range(2):
            w = w - (self.slope(shared, w, problem) - at_start + shared["slope"]) / 2
        return Update(
            {"visits": state["visits"] + 1}, {"weight": w - shared["weight"]}, model={**shared, "weight": w}
        )

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        if now.exchange == 0:
            return {**shared, "slope": aggregate["slope"]}, server
        return super().server_step(now, shared, server, aggregate)


@dataclass(frozen=True, kw_only=True)
class Answering(Scalar):
    """Tells client a ten times the round's number and client b 2 w + 6; c is told nothing. Half of the way is sent."""

    def answers(
        self, now: Round, shared: Weights, server: Weights, clients: Sequence[ClientId]
    ) -> dict[ClientId, Weights]:
        w = shared["weight"]
        told = {"a": torch.full_like(w, 10 * now.number), "b": 2 * w + 6}
        return {client: {"goal": told[str(client)]} for client in clients if client in told}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        goal = shared.get("goal", shared["weight"])
        return Update({"goal": goal}, {"weight": (goal - shared["weight"]) / 2})


@dataclass(frozen=True, kw_only=True)
class Totalling(Scalar):
    """Every client sends c_i, and w grows by sum_i a_i c_i over those who were asked."""

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        w = shared["weight"]
        return Update({}, {"weight": w - self.slope(shared, w, problem)})

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        return {**shared, "weight": shared["weight"] + now.alpha * aggregate["weight"]}, server


@dataclass(frozen=True, kw_only=True)
class TotallingUnbiased(Totalling):
    """The same, where weights are a_i I/r."""

    weights: ClassVar[Kind] = "unbiased"


@dataclass(frozen=True, kw_only=True)
class Measuring(pflego.PFLEGO):
    """PFLEGO, with three figures of its clients that are combined in three ways."""

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        update = super().client_update(now, shared, state, problem)
        own = {
            "head_norm": metrics.mean(norm(update.state), weight=problem.samples),
            "samples_seen": metrics.total(problem.samples),
            "most_classes": metrics.largest(problem.outputs),
        }
        return Update(
            update.state, update.contribution, {**update.metrics, **own}, loss=update.loss, model=update.model
        )


@dataclass(frozen=True)
class Loudest:
    """Of every number, the one that is farthest from zero, times the sum of weights."""

    additive: ClassVar[bool] = False

    def combine(self, contributions: Sequence[Weights], weights: Sequence[float]) -> Weights:
        combined = {}
        for name in contributions[0]:
            stacked = torch.stack([c[name] for c in contributions])
            farthest = stacked.abs().argmax(dim=0, keepdim=True)
            combined[name] = stacked.gather(0, farthest)[0] * sum(weights)
        return combined


@dataclass(frozen=True)
class Damped:
    """Half of the weighted sum: a rule that needs no more than sums."""

    additive: ClassVar[bool] = True

    def combine(self, contributions: Sequence[Weights], weights: Sequence[float]) -> Weights:
        return weighted_sum(zip([w / 2 for w in weights], contributions, strict=True))


class Neighbours:
    """Two clients that stand beside each other, or the last and the first. It says nothing of itself in words."""

    def check(self, clients: int) -> None:
        if clients < 3:
            raise pflego.SettingError("participation: neighbours need at least 3 clients")

    def expected(self, clients: int) -> float:
        return 2

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        first = int(generator.integers(clients))
        return np.array([first, (first + 1) % clients])
