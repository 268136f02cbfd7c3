"""FedBABU (Oh et al., 2022): one head, drawn once and never trained; only the backbone learns. Round t, client i:

    theta_i <- theta_t
    tau times   theta_i <- theta_i - beta grad_theta l_i(W, theta_i), with momentum
    server      theta_{t+1} = sum_i N_i theta_i / sum_i N_i

W = U V^T of the singular value decomposition of a random matrix: orthonormal rows. The paper behind this package
evaluates the shared model as it is (fine_tune=0); the method's own authors let every client fine-tune the whole
model, head included, before it is used (fine_tune = steps).
"""

from __future__ import annotations

from dataclasses import dataclass

from pflego.algorithms.base import Round, Update
from pflego.algorithms.descent import descend
from pflego.algorithms.fedavg import FedAvg
from pflego.errors import UserError, check_not_negative
from pflego.heads import HeadInit
from pflego.problem import Problem
from pflego.weights import Weights


@dataclass(frozen=True, kw_only=True)
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

    momentum: float = 0.9
    fine_tune: int = 0
    head_init: HeadInit = "orthonormal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("momentum", self.momentum)
        if not isinstance(self.fine_tune, int) or self.fine_tune < 0:
            raise UserError(f"fine_tune must be a whole number, 0 or more, not {self.fine_tune!r}")

    def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on the backbone; send it."""
        theta = problem.model.names
        weights = descend(
            problem, shared, steps=self.steps, rate=self.client_lr, momentum=self.momentum, only=theta
        )
        return Update(
            state, {name: weights[name] for name in theta}, model=self.personal(weights, state, problem)
        )

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """The shared model, fine-tuned if asked."""
        return descend(problem, shared, steps=self.fine_tune, rate=self.client_lr, momentum=self.momentum)
