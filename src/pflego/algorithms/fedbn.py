"""FedBN (Li et al., 2021): FedAvg for everything but batch norm, whose weights and statistics stay at home.

Round t, client i of the cohort, with w the weights outside of batch norm, u_i = (gamma, beta) of client i's batch norms
and s_i their running means and variances:

    w_i <- w_t
    tau times   (w_i, u_i) <- (w_i, u_i) - beta grad l_i(w_i, u_i),  each batch normalised with its own statistics
                s_i        <- (1 - m) s_i + m (statistics of the batch),  m the layer's momentum
    sent        w_i - w_t
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i

Client i's model is (w, u_i, s_i). The authors take the plain mean over clients, weighting="equal" here, on five domains
of digits: a rate of 0.01, batches of 32, one epoch per round. Without batch norm in the backbone nothing stays at home,
which is FedAvg.
"""

from __future__ import annotations

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.errors import ModelError
from pflego.learning.model import Model
from pflego.learning.modes import batch_norms
from pflego.weights import Weights


@method
class FedBN(FedAvg):
    """One model for everybody, but for batch norm, which is personal; the model says norm="personal" or "averaged"."""

    @property
    def family(self) -> Family:
        """Batch norm is each client's own."""
        return "split"

    @property
    def uses_shared_model(self) -> bool:
        """Everybody has batch norms of its own."""
        return False

    def own_part(self, model: Model, weights: Weights) -> Weights:
        """Take batch norms, with their statistics, and what is personal by the model's own rule."""
        named = super().own_part(model, weights)
        return {name: w for name, w in weights.items() if name in named or name in model.norm_names}

    def check_model(self, model: Model) -> None:
        """Refuse batch norm whose statistics do not move."""
        super().check_model(model)
        if not model.batch_norms and (frozen := batch_norms(model.backbone)):
            raise ModelError(
                f"fedbn keeps the statistics of batch norm at home, and those of {next(iter(frozen))!r} are frozen: "
                "Model(..., norm='personal'), or --norm personal"
            )
