"""FedBABU (Oh et al., 2022): one head, drawn once and never trained; only the backbone learns. Round t, client i:

    theta_i <- theta_t
    tau times   theta_i <- theta_i - beta grad_theta l_i(W, theta_i), with momentum
    sent        theta_i - theta_t
    server      theta_{t+1} = theta_t + sum_i N_i (theta_i - theta_t) / sum_i N_i

W = U V^T of the singular value decomposition of a random matrix: orthonormal rows. The paper behind this package
evaluates the shared model as it is (fine_tune=0); the method's own authors let every client fine-tune the whole
model, head included, before it is used (fine_tune = steps).
"""

from __future__ import annotations

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.local_steps import descend
from pflego.algorithms.registry import method
from pflego.declaration import Count, NotNegative
from pflego.exchange.round import Round, Update
from pflego.learning.heads import HeadInit
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus


@method
class FedBabu(FedAvg):
    """A shared backbone under a head that never changes.

    Parameters
    ----------
    momentum
        Of the local steps.
    fine_tune
        Steps on the whole model that a client takes before its model is used or judged; nothing of them is kept.
    head_init
        How the one head is drawn: orthonormal rows, or as for every method.
    """

    momentum: NotNegative = 0.9
    fine_tune: Count = 0
    head_init: HeadInit = "orthonormal"

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on the backbone; send how far it went."""
        theta = problem.model.names
        weights = descend(
            problem, shared, steps=self.steps, rate=self.client_lr, momentum=self.momentum, only=theta
        )
        moved = minus({name: weights[name] for name in theta}, shared)
        return Update(state, moved, model=self.personal(weights, state, problem))

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return the shared model, fine-tuned if asked."""
        return descend(problem, shared, steps=self.fine_tune, rate=self.client_lr, momentum=self.momentum)
