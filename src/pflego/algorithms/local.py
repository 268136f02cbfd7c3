"""Learning alone: every client trains a model of its own and nothing is sent.

    tau times   (theta_i, W_i) <- (theta_i, W_i) - beta grad l_i(W_i, theta_i)

What federating is measured against. tau is `steps`, beta `client_lr`.
"""

from __future__ import annotations

from pflego.algorithms.base import Family
from pflego.algorithms.local_steps import LocalSteps
from pflego.algorithms.registry import method
from pflego.exchange.round import Round, Update
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.weights import Weights


@method
class Local(LocalSteps):
    """Each client alone."""

    abilities = frozenset({"personal parts", "training mode"})

    @property
    def family(self) -> Family:
        """Nothing is shared."""
        return "alone"

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """Return nothing: no weights are shared."""
        return {}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """theta_0 and W_i."""
        return {**problem.model.weights(), **self.new_head(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Make tau gradient steps on the whole model."""
        return Update(self.adapt(shared, state, problem))

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Make tau more steps, as in a round."""
        return self.descend(problem, state)

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Make tau steps, as in anybody's first round."""
        return self.descend(problem, state, duration=steps)
