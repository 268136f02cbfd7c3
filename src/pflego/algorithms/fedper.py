"""FedPer (Arivazhagan et al., 2019): FedAvg for the backbone, heads stay at home. Round t, client i:

theta_i <- theta_t
tau times   (theta_i, W_i) <- (theta_i, W_i) - beta grad l_i(W_i, theta_i)
server      theta_{t+1} = sum_i N_i theta_i / sum_i N_i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pflego.algorithms.base import Algorithm, Reply, Round, Update
from pflego.algorithms.descent import average, descend
from pflego.errors import check_positive
from pflego.heads import HeadInit, check_head_init
from pflego.problem import Problem
from pflego.weights import Weights


@dataclass(frozen=True, kw_only=True)
class FedPer(Algorithm):
    """A shared backbone, averaged, and personal heads, trained jointly.

    Parameters
    ----------
    steps
        tau, full gradient steps a round.
    client_lr
        beta, their rate.
    head_init
        How heads start: "zeros", "uniform", "centred", "layer", or a function.
    """

    steps: int = 50
    client_lr: float = 0.007
    head_init: HeadInit = "zeros"

    def __post_init__(self) -> None:
        check_positive("steps", self.steps, whole=True)
        check_positive("client_lr", self.client_lr)
        check_head_init(self.head_init)

    @property
    def linear(self) -> bool:
        """A mean is all the server makes of the messages."""
        return True

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i."""
        return problem.new_head(self.head_init, seed)

    def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau joint steps; keep the head, send the backbone."""
        weights = descend(problem, {**shared, **state}, steps=self.steps, rate=self.client_lr)
        return self._parted(shared, weights)

    def server_update(
        self, round: Round, shared: Weights, server: Weights, replies: Sequence[Reply]
    ) -> tuple[Weights, Weights]:
        """The mean of the clients' backbones."""
        return average(replies) or shared, server

    def _parted(self, shared: Weights, weights: Weights) -> Update:
        state = {name: w for name, w in weights.items() if name not in shared}
        return Update(state, {name: weights[name] for name in shared}, model=weights)
