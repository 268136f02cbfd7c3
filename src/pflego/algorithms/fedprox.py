"""FedProx (Li et al., 2020): FedAvg whose clients are held near the model they received.

w_i <- w_t
tau times   w_i <- w_i - beta (grad l_i(w_i) + mu (w_i - w_t))
sent        w_i - w_t
server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i
"""

from __future__ import annotations

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.local_steps import descend
from pflego.algorithms.registry import method
from pflego.declaration import Strength
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus


@method
class FedProx(FedAvg):
    """FedAvg with mu/2 |w - w_t|^2 added to every client's loss.

    Parameters
    ----------
    mu
        The strength of the pull to the shared model. 0 is FedAvg.
    """

    mu: Strength = 0.25

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on a copy of the model, with the pull; send how far it went."""
        weights = descend(problem, shared, steps=self.steps, rate=self.client_lr, anchor=shared, mu=self.mu)
        return Update(state, minus(weights, shared), model=weights)
