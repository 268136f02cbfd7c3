"""FedRep (Collins et al., 2021): FedPer in two phases, first the head, then the backbone. Round t, client i:

    theta_i <- theta_t
    tau - s times   W_i     <- W_i - beta grad_W l_i(W_i, theta_t)
    s times         theta_i <- theta_i - beta grad_theta l_i(W_i, theta_i)
    sent            theta_i - theta_t
    server          theta_{t+1} = theta_t + sum_i N_i (theta_i - theta_t) / sum_i N_i

theta does not move in the first phase, so one forward pass serves all its steps. s is `body_steps`; both phases may
have momentum, each its own. Parts of the backbone that are personal learn in the second phase.
"""

from __future__ import annotations

from pflego.algorithms.fedper import FedPer
from pflego.algorithms.registry import method
from pflego.declaration import Whole
from pflego.errors import SettingError
from pflego.learning.problem import Problem
from pflego.weights import Weights


@method
class FedRep(FedPer):
    """A shared backbone and personal heads, trained in turn.

    Parameters
    ----------
    body_steps
        s, how many of the tau steps, or of the epochs, train the backbone; those before train the head.
    """

    abilities = frozenset({"personal parts", "training mode"})

    body_steps: Whole = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.body_steps > self.duration:
            unit = "steps" if self.epochs is None else "epochs"
            raise SettingError(f"body_steps must be at most {unit}, {self.duration}, not {self.body_steps}")

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Train the head on cached features, then the backbone, as in a round."""
        weights = {**shared, **state}
        weights |= self.head_steps(problem, weights, self.duration - self.body_steps)
        return self.descend(problem, weights, duration=self.body_steps, only=problem.model.names)
