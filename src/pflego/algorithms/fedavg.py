"""FedAvg (McMahan et al., 2017): one model for everybody. Round t, client i of the cohort:

    w_i <- w_t
    tau times   w_i <- w_i - beta grad l_i(w_i)
    server      w_{t+1} = sum_i N_i w_i / sum_i N_i

w is backbone and head together. tau is `steps`, beta `client_lr`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pflego.algorithms.base import Algorithm, Reply, Round, Update
from pflego.algorithms.descent import average, descend
from pflego.errors import check_choice, check_positive
from pflego.heads import HeadInit, check_head_init
from pflego.model import Model
from pflego.problem import Labels, Problem
from pflego.randomness import torch_generator
from pflego.weights import Weights


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """One model for everybody, averaged.

    Parameters
    ----------
    steps
        tau, full gradient steps a round.
    client_lr
        beta, their rate.
    head_init
        How the shared head starts: "zeros", "uniform", "centred", "layer", or a function.
    labels
        "local": outputs are numbered anew on every client, as in the paper's tables; "global": one output for every
        class of the federation.
    """

    steps: int = 50
    client_lr: float = 0.007
    head_init: HeadInit = "zeros"
    labels: Literal["local", "global"] = "local"

    def __post_init__(self) -> None:
        check_positive("steps", self.steps, whole=True)
        check_positive("client_lr", self.client_lr)
        check_head_init(self.head_init)
        check_choice("labels", self.labels, ["local", "global"])

    @property
    def label_space(self) -> Labels:
        """What the outputs stand for."""
        return self.labels

    @property
    def linear(self) -> bool:
        """A mean is all the server makes of the messages."""
        return True

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """theta_0 and a head."""
        generator = torch_generator(seed, "common head")
        return {**model.weights(), **model.head(outputs).init(self.head_init, generator, model.weight_dtype)}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """A client keeps nothing."""
        return {}

    def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on a copy of the model; send it."""
        weights = descend(problem, shared, steps=self.steps, rate=self.client_lr)
        return Update(state, weights, model=weights)

    def server_update(
        self, round: Round, shared: Weights, server: Weights, replies: Sequence[Reply]
    ) -> tuple[Weights, Weights]:
        """The mean of the clients' models."""
        return {**shared, **average(replies)}, server
