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
from pflego.algorithms.registry import method
from pflego.declaration import NotNegative
from pflego.errors import ModelError
from pflego.learning.heads import HeadInit
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.weights import Weights


@method
class FedBabu(FedAvg):
    """A shared backbone under a head that never changes.

    Parameters
    ----------
    momentum
        Of the local steps.
    head_init
        How the one head is drawn: orthonormal rows, or as for every method.
    """

    abilities = frozenset({"personal parts", "training mode"})

    momentum: NotNegative = 0.9
    head_init: HeadInit | None = "orthonormal"

    def check_model(self, model: Model) -> None:
        """Refuse a personal head: nobody ever trains it."""
        super().check_model(model)
        if model.personal_head:
            raise ModelError("fedbabu never trains its head, so that it cannot be personal: leave head out")

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau steps on the backbone, as in a round."""
        model = problem.model
        weights = self.descend(problem, {**shared, **model.personal_part(state)}, only=model.names)
        return {name: weights[name] for name in (*model.names, *model.statistics)}
