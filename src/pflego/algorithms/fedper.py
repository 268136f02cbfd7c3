"""FedPer (Arivazhagan et al., 2019): FedAvg for the backbone, heads stay at home. Round t, client i:

theta_i <- theta_t
tau times   (theta_i, W_i) <- (theta_i, W_i) - beta grad l_i(W_i, theta_i)
sent        theta_i - theta_t
server      theta_{t+1} = theta_t + sum_i N_i (theta_i - theta_t) / sum_i N_i
"""

from __future__ import annotations

from pflego.algorithms.base import Algorithm
from pflego.algorithms.local_steps import descend
from pflego.algorithms.registry import method
from pflego.declaration import LearningRate, Whole
from pflego.exchange.round import Round, Update
from pflego.learning.heads import HeadInit
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus


@method
class FedPer(Algorithm):
    """A shared backbone, averaged, and personal heads, trained jointly.

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
    client_lr: LearningRate = 0.007
    head_init: HeadInit = "zeros"

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i."""
        return problem.new_head(self.head_init, seed)

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau joint steps; keep the head, send how far the backbone went."""
        weights = descend(problem, {**shared, **state}, steps=self.steps, rate=self.client_lr)
        return self._parted(shared, weights)

    def _parted(self, shared: Weights, weights: Weights) -> Update:
        state = {name: w for name, w in weights.items() if name not in shared}
        moved = minus({name: weights[name] for name in shared}, shared)
        return Update(state, moved, model=weights)
