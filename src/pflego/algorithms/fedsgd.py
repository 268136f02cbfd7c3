"""FedSGD (McMahan et al., 2017): stochastic gradient descent on everybody's loss. Round t, client i of the cohort:

    g_i    = grad l_i(w_t),  sent to the server
    server w_{t+1} = w_t - beta sum_i N_i g_i / sum_i N_i

w is backbone and head together. FedAvg with one step and a rate that all clients have in common is the same; here
gradients travel, so that it stays exact where beta="auto" measures a rate of their own for clients: the server then
takes the smallest of the cohort's. A participant is judged after a step of its own.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.weights import Weights, step, weighted_sum

_INVERSE = "inverse rate"  # 1/beta as a client has measured it: the largest counts


@method
class FedSGD(FedAvg):
    """One model for everybody, and one gradient per client and round.

    Parameters
    ----------
    batch_size
        Samples that a gradient is of, drawn anew in every round; all of a client's if not given.
    client_lr
        beta, the rate of the server's step. "auto": the smallest of the cohort's 1/L.
    """

    steps: ClassVar[int] = 1  # type: ignore[misc]  # no field: more than one would be FedAvg
    epochs: ClassVar[None] = None  # type: ignore[misc]

    @property
    def largest(self) -> frozenset[str]:
        """Of inverse rates the server takes the largest."""
        return frozenset([_INVERSE] if self.client_lr == "auto" else [])

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Send the gradient at the shared model."""
        rate = self.rate_of(problem, shared, list(shared))
        [batch] = problem.batches(self.batch_size, 1)
        gradient = problem.gradient(shared, batch)
        if self.weight_decay:
            gradient = weighted_sum([(1.0, gradient), (self.weight_decay, shared)])
        stepped = step(shared, gradient, rate)
        measured = {
            name: torch.tensor(1 / rate if rate else 0.0, dtype=torch.float64) for name in self.largest
        }
        return Update(state, {**gradient, **measured}, model=self.personal(shared, stepped, problem))

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Make one step along the mean gradient."""
        if self.client_lr == "auto":
            inverse = float(aggregate[_INVERSE])
            rate = 1 / inverse if inverse else 0.0
        else:
            rate = self.client_lr * self.lr_decay ** (now.number - 1)
        return step(shared, aggregate, rate), server
