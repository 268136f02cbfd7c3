"""Client work in this process, one client after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pflego.algorithms.base import Algorithm, Reply, Round
from pflego.evaluation import Score
from pflego.federation import ClientId, Federation
from pflego.model import Model
from pflego.problem import Problem
from pflego.weights import Weights, to


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


class LocalEngine:
    """Runs a cohort here."""

    def __init__(
        self,
        federation: Federation,
        model: Model,
        algorithm: Algorithm,
        states: Mapping[ClientId, Weights],
        device: torch.device,
    ) -> None:
        self.federation = federation
        self.model = model.to(device)
        self.algorithm = algorithm
        self.states = states
        self.device = device

    def run(self, round: Round, shared: Weights, cohort: Sequence[int]) -> list[Outcome]:
        """Let every client of the cohort do its work; outcomes in the order of the federation."""
        return sorted((self._client(round, shared, p) for p in cohort), key=lambda outcome: outcome.position)

    def _client(self, round: Round, shared: Weights, position: int) -> Outcome:
        client = self.federation[position]
        problem = Problem(client, self.model, self.federation.task, self.device)
        state = to(self.states[client.id], self.device)
        start = time.perf_counter()
        update = self.algorithm.client_update(round, shared, state, problem)
        seconds = time.perf_counter() - start
        weights = update.model or self.algorithm.personal(shared, update.state)
        return Outcome(
            position,
            Reply(client.id, problem.samples, update.message),
            state=to(update.state, torch.device("cpu")),
            loss=problem.loss(weights) if update.loss is None else update.loss,
            score=problem.test(weights),
            seconds=seconds,
            forward_passes=problem.forward_passes,
            backward_passes=problem.backward_passes,
        )
