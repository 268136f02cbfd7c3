"""Ditto (Li et al., 2021): FedAvg for a global model, and beside it a personal model near it. Round t, client i:

    w_i <- w_t
    tau times   w_i <- w_i - beta_g grad l_i(w_i),                    w_i - w_t is sent
    tau times   v_i <- v_i - beta (grad l_i(v_i) + mu (v_i - w_t))    kept
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i

v_i, a whole model, is what client i uses. beta is `client_lr`, beta_g `global_lr`. Parts that are personal are v_i's
alone: w has none, its steps see those of v_i as they are, and nothing pulls them.
"""

from __future__ import annotations

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.declaration import AutoRate, Strength
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus


@method
class Ditto(FedAvg):
    """A global model, and a personal one for every client.

    Parameters
    ----------
    mu
        The strength of the pull to the shared model. At 0 a personal model learns alone.
    global_lr
        beta_g, the rate of the global model's steps; client_lr if not given.
    """

    abilities = frozenset({"personal parts", "training mode"})

    mu: Strength = 0.25
    global_lr: AutoRate | None = None

    @property
    def family(self) -> Family:
        """A model of its own, pulled to the shared one."""
        return "mixed"

    @property
    def uses_shared_model(self) -> bool:
        """Everybody uses a model of its own."""
        return False

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """v_i: theta_0 and a head of its own."""
        return {**problem.model.weights(), **self.new_head(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on a copy of the global model, tau on the personal one."""
        names, whole = list(shared), {**state, **shared}
        sent = self.descend(problem, whole, rate=self.global_lr, only=names, draw="global batches")
        moved = minus({name: sent[name] for name in names}, shared)
        return Update(self.adapt(shared, state, problem), moved)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau steps on the personal model, as in a round."""
        return self.descend(problem, state, anchor=shared, mu=self.mu)

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Start v_i at w, where the others' have been pulled to meanwhile, and take tau steps."""
        return self.descend(problem, {**state, **shared}, duration=steps, anchor=shared, mu=self.mu)
