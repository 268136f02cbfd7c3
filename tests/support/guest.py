"""Methods of one's own, as a user would bring them along: named module:Class, and simple enough to work out by hand.

A client with n samples shrinks all shared weights by n/100 of a rate, and adds one to its head whenever it is asked.
All rows of a head are alike then, so that a client of K classes has a loss of log K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

import pflego
from pflego import metrics
from pflego.declaration import Strength
from pflego.exchange.round import Round, Update
from pflego.federation.roster import ClientId
from pflego.learning.problem import Problem
from pflego.weights import Weights, norm


@dataclass(frozen=True, kw_only=True)
class Shrinking(pflego.Algorithm):
    """Shrinks.

    Parameters
    ----------
    shrink_rate
        How much a client of 100 samples takes away.
    """

    shrink_rate: Strength = 0.5

    def init_state(self, problem: Problem, seed: int) -> Weights:
        return problem.new_head("zeros", seed)

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        share = self.shrink_rate * problem.samples / 100 * float(shared.get("times", 1.0))
        sent = {name: -share * tensor for name, tensor in shared.items() if name != "times"}
        measured = {
            "drift": metrics.mean(norm(sent), weight=problem.samples),
            "visits": metrics.total(1),
            "most_samples": metrics.largest(problem.samples),
        }
        return Update({"head": state["head"] + 1}, sent, measured)


@dataclass(frozen=True, kw_only=True)
class ShrinkingTwice(Shrinking):
    """Does it in two exchanges per round."""

    exchanges: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True)
class ShrinkingAsTold(Shrinking):
    """Does it as often at once as a client's name has letters, which the server tells each of them."""

    def answers(
        self, now: Round, shared: Weights, server: Weights, clients: Sequence[ClientId]
    ) -> Mapping[ClientId, Weights]:
        return {client: {"times": torch.tensor(float(len(str(client))))} for client in clients}


@dataclass(frozen=True, kw_only=True)
class Namesake(Shrinking):
    """Has settings that are called like those of a run and of a deployment."""

    seed: int = 3
    weighting: str = "own"
    wait: float = 1.5
