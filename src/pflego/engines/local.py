"""Client work in this process, one client after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import torch

from pflego.algorithms.base import Algorithm, Reply, Round
from pflego.evaluation import Score
from pflego.federation import ClientId
from pflego.problem import Problems
from pflego.weights import Weights, is_finite, to


@dataclass(frozen=True)
class Outcome:
    """What came of one client's work in a round."""

    position: int  # of the client in the federation
    reply: Reply
    state: Weights
    loss: float
    score: Score
    seconds: float
    forward_passes: int
    backward_passes: int
    fallbacks: int

    @property
    def finite(self) -> bool:
        """Whether it is fit for use: no infinity and no NaN in what was sent, kept or measured."""
        return isfinite(self.loss) and is_finite(self.reply.message) and is_finite(self.state)


@dataclass(frozen=True)
class LocalEngine:
    """Runs a cohort here."""

    problems: Problems
    algorithm: Algorithm
    states: Mapping[ClientId, Weights]

    def run(self, round: Round, shared: Weights, cohort: Sequence[int]) -> list[Outcome]:
        """Let every client of the cohort do its work; outcomes in the order of the federation."""
        return sorted((self._client(round, shared, p) for p in cohort), key=lambda outcome: outcome.position)

    def _client(self, round: Round, shared: Weights, position: int) -> Outcome:
        problem = self.problems[position]
        client = problem.client
        state = to(self.states[client.id], problem.device)
        start = time.perf_counter()
        update = self.algorithm.client_update(round, shared, state, problem)
        seconds = time.perf_counter() - start
        weights = update.model or self.algorithm.personal(shared, update.state, problem)
        return Outcome(
            position,
            Reply(client.id, problem.samples, update.message),
            state=to(update.state, torch.device("cpu")),
            loss=problem.loss(weights) if update.loss is None else update.loss,
            score=problem.test(weights),
            seconds=seconds,
            forward_passes=problem.forward_passes,
            backward_passes=problem.backward_passes,
            fallbacks=update.fallbacks,
        )
