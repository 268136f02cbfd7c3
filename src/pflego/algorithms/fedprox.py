"""FedProx (Li et al., 2020): FedAvg whose clients are held near the model they received.

w_i <- w_t
tau times   w_i <- w_i - beta (grad l_i(w_i) + mu (w_i - w_t))
sent        w_i - w_t
server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i
"""

from __future__ import annotations

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.declaration import Strength
from pflego.learning.problem import Problem
from pflego.weights import Weights


@method
class FedProx(FedAvg):
    """FedAvg with mu/2 |w - w_t|^2 added to every client's loss.

    Parameters
    ----------
    mu
        The strength of the pull to the shared model. 0 is FedAvg.
    """

    abilities = frozenset({"personal parts", "training mode"})

    mu: Strength = 0.25

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau steps on a copy of the model, with the pull of what is shared, as in a round."""
        weights = {**shared, **problem.model.personal_part(state)}
        return self.descend(problem, weights, anchor=shared, mu=self.mu)
