"""FedPer (Arivazhagan et al., 2019): FedAvg for the backbone, heads stay at home. Round t, client i:

    theta_i <- theta_t
    tau times   (theta_i, W_i) <- (theta_i, W_i) - beta grad l_i(W_i, theta_i)
    sent        theta_i - theta_t
    server      theta_{t+1} = theta_t + sum_i N_i (theta_i - theta_t) / sum_i N_i

Parts of the backbone that are personal stay at home like the head.
"""

from __future__ import annotations

from pflego.algorithms.base import Family
from pflego.algorithms.local_steps import LocalSteps
from pflego.algorithms.registry import method
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus


@method
class FedPer(LocalSteps):
    """A shared backbone, averaged, and personal heads, trained jointly."""

    abilities = frozenset({"personal parts", "training mode"})

    @property
    def family(self) -> Family:
        """The backbone is shared, the head is not."""
        return "split"

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i, and what of the backbone is personal."""
        return {**problem.model.personal_weights(), **self.new_head(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Train head and backbone; keep what is personal, send how far the rest went."""
        weights = self.adapt(shared, state, problem)
        own = {name: w for name, w in weights.items() if name not in shared}
        moved = minus({name: weights[name] for name in shared}, shared)
        return Update(own, moved, model=weights)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau joint steps, as in a round: a head, and a backbone beside the shared one."""
        return self.descend(problem, {**shared, **state})
