"""FedProx (Li et al., 2020): FedAvg whose clients are held near the model they received.

w_i <- w_t
tau times   w_i <- w_i - beta (grad l_i(w_i) + mu (w_i - w_t))
server      w_{t+1} = sum_i N_i w_i / sum_i N_i
"""

from __future__ import annotations

from dataclasses import dataclass

from pflego.algorithms.base import Round, Update
from pflego.algorithms.descent import descend
from pflego.algorithms.fedavg import FedAvg
from pflego.errors import check_not_negative
from pflego.problem import Problem
from pflego.weights import Weights


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg with mu/2 |w - w_t|^2 added to every client's loss.

    Parameters
    ----------
    mu
        The strength of the pull; 0 is FedAvg.
    """

    mu: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("mu", self.mu)

    def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on a copy of the model, with the pull; send it."""
        weights = descend(problem, shared, steps=self.steps, rate=self.client_lr, anchor=shared, mu=self.mu)
        return Update(state, weights, model=weights)
