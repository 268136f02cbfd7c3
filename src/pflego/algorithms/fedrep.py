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
        s, how many of the tau steps, or of the epochs, train the backbone; those before train the head. If not given, 5
        steps or one epoch.
    """

    abilities = frozenset({"personal parts", "training mode"})

    body_steps: Whole | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        unit = "steps" if self.epochs is None else "epochs"
        if self.body > self.duration:
            raise SettingError(f"body_steps must be at most {unit}, {self.duration}, not {self.body}")
        if self.body_steps is None and self.epochs == 1:
            raise SettingError(
                f"{self.name} needs two epochs or more: one for the head, one for the backbone"
            )

    @property
    def body(self) -> int:
        """How long the backbone is trained, in steps or epochs."""
        return self.body_steps or (5 if self.epochs is None else 1)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Train the head on cached features, then the backbone, as in a round."""
        weights = {**shared, **state}
        weights |= self.head_steps(problem, weights, self.duration - self.body)
        return self.descend(problem, weights, duration=self.body, only=problem.model.names)
