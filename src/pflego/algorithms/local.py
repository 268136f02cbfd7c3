"""Learning alone: every client trains a model of its own and nothing is sent.

    tau times   (theta_i, W_i) <- (theta_i, W_i) - beta grad l_i(W_i, theta_i)

What federating is measured against. tau is `steps`, beta `client_lr`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pflego.algorithms.base import Algorithm, Reply, Round, Update
from pflego.algorithms.descent import descend
from pflego.errors import check_positive
from pflego.heads import HeadInit, check_head_init
from pflego.model import Model
from pflego.problem import Problem
from pflego.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm):
    """Each client alone.

    Parameters
    ----------
    steps
        tau, full gradient steps a round.
    client_lr
        beta, their rate.
    head_init
        As for every method: "zeros", "uniform", "centred", "layer", or a function.
    """

    steps: int = 50
    client_lr: float = 0.1
    head_init: HeadInit = "zeros"

    def __post_init__(self) -> None:
        check_positive("steps", self.steps, whole=True)
        check_positive("client_lr", self.client_lr)
        check_head_init(self.head_init)

    @property
    def linear(self) -> bool:
        """Nothing is sent."""
        return True

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """Nothing is shared."""
        return {}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """theta_0 and W_i."""
        return {**problem.model.weights(), **problem.new_head(self.head_init, seed)}

    def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Tau gradient steps on the whole model."""
        return Update(descend(problem, state, steps=self.steps, rate=self.client_lr), message={})

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Tau steps, as in anybody's first round."""
        return descend(problem, state, steps=self.steps if steps is None else steps, rate=self.client_lr)

    def server_update(
        self, round: Round, shared: Weights, server: Weights, replies: Sequence[Reply]
    ) -> tuple[Weights, Weights]:
        """Nothing to do."""
        return shared, server
