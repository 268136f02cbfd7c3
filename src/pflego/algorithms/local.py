"""Learning alone: every client trains a model of its own and nothing is sent.

    tau times   (theta_i, W_i) <- (theta_i, W_i) - beta grad l_i(W_i, theta_i)

What federating is measured against. tau is `steps`, beta `client_lr`.
"""

from __future__ import annotations

from pflego.algorithms.base import Algorithm
from pflego.algorithms.local_steps import descend
from pflego.algorithms.registry import method
from pflego.declaration import LearningRate, Whole
from pflego.exchange.round import Round, Update
from pflego.learning.heads import HeadInit
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.weights import Weights


@method
class Local(Algorithm):
    """Each client alone.

    Parameters
    ----------
    steps
        tau, full gradient steps per round.
    client_lr
        beta, their rate.
    head_init
        How heads start: zeros, uniform, centred, layer or orthonormal; or a function, as in PFLEGO.
    """

    steps: Whole = 50
    client_lr: LearningRate = 0.1
    head_init: HeadInit = "zeros"

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """Return nothing: no weights are shared."""
        return {}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """theta_0 and W_i."""
        return {**problem.model.weights(), **problem.new_head(self.head_init, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Make tau gradient steps on the whole model."""
        return Update(descend(problem, state, steps=self.steps, rate=self.client_lr))

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Make tau steps, as in anybody's first round."""
        return descend(problem, state, steps=self.steps if steps is None else steps, rate=self.client_lr)
