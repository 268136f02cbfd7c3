"""FedAvg (McMahan et al., 2017): one model for everybody. Round t, client i of the cohort:

    w_i <- w_t
    tau times   w_i <- w_i - beta grad l_i(w_i)
    sent        w_i - w_t
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i

w is backbone and head together. tau is `steps`, beta `client_lr`.
"""

from __future__ import annotations

from typing import Literal

from pflego.algorithms.base import Algorithm
from pflego.algorithms.local_steps import descend
from pflego.algorithms.registry import method
from pflego.declaration import LearningRate, Whole
from pflego.exchange.round import Round, Update
from pflego.learning.heads import HeadInit
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.randomness import torch_generator
from pflego.weights import Weights, minus


@method
class FedAvg(Algorithm):
    """One model for everybody, averaged.

    Parameters
    ----------
    steps
        tau, full gradient steps per round.
    client_lr
        beta, their rate.
    head_init
        How heads start: zeros, uniform, centred, layer or orthonormal; or a function, as in PFLEGO.
    labels
        What the outputs of a shared head stand for: local or global classes. "local": outputs are numbered anew on
        every client, as in the paper's tables; "global": one output for every class of the federation.
    """

    steps: Whole = 50
    client_lr: LearningRate = 0.007
    head_init: HeadInit = "zeros"
    labels: Literal["local", "global"] = "local"

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """theta_0 and a head."""
        generator = torch_generator(seed, "common head")
        return {**model.weights(), **model.head(outputs).init(self.head_init, generator, model.weight_dtype)}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """Return nothing: a client keeps no state."""
        return {}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on a copy of the model; send how far it went."""
        weights = descend(problem, shared, steps=self.steps, rate=self.client_lr)
        return Update(state, minus(weights, shared), model=weights)
