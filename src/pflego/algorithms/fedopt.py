"""FedOpt (Reddi et al., 2021): FedAvg whose server treats how far clients went as a gradient. Round t, client i:

    w_i <- w_t;  tau times  w_i <- w_i - beta grad l_i(w_i);  w_i - w_t is sent
    server      D = sum_i N_i (w_i - w_t) / sum_i N_i
    momentum    m <- b_1 m + D,              w_{t+1} = w_t + rho m                       FedAvgM (Hsu et al., 2019)
    the others  m <- b_1 m + (1 - b_1) D,    w_{t+1} = w_t + rho m / (sqrt(v) + eps)
      adagrad     v <- v + D^2
      adam        v <- b_2 v + (1 - b_2) D^2
      yogi        v <- v - (1 - b_2) D^2 sign(v - D^2)

m starts at 0 and v at eps^2, and neither is corrected for it. The authors' values: b_1 = 0.9, of Adagrad 0; b_2 = 0.99,
eps = 1e-3; rho by search, between 1e-3 and 10. rho is `server_lr`. Running statistics of batch norm are averaged, as in
FedAvg: no optimiser steps on them.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import apart, averaged
from pflego.declaration import LearningRate, Positive, Probability
from pflego.exchange.round import Round
from pflego.weights import Weights


@method
class FedOpt(FedAvg):
    """FedAvg with an adaptive optimiser, or momentum, at the server.

    Parameters
    ----------
    server_optimizer
        What the server does with the mean of how far clients went: adam, yogi, adagrad or momentum.
    server_lr
        rho, the rate of the server's step. With momentum, 1 without beta1 is FedAvg.
    beta1
        b_1, how much of its mean step the server keeps; 0.9, or 0 of adagrad, if not given.
    beta2
        b_2, how much of the mean square of steps adam and yogi keep.
    eps
        The least that a step is divided by.
    """

    abilities = frozenset({"personal parts", "training mode"})

    server_optimizer: Literal["adam", "yogi", "adagrad", "momentum"] = "adam"
    server_lr: LearningRate = 0.03
    beta1: Probability | None = None
    beta2: Probability = 0.99
    eps: Positive = 1e-3

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Step by the optimiser, along the mean of how far clients went."""
        beta1 = self.beta1
        if beta1 is None:
            beta1 = 0.0 if self.server_optimizer == "adagrad" else 0.9
        moved, memory = {**shared, **averaged(shared, aggregate)}, {}
        for name, difference in apart(aggregate)[0].items():
            mean = server.get(f"{name}/mean", torch.zeros_like(difference)) * beta1
            if self.server_optimizer == "momentum":
                mean = step = mean + difference
            else:
                mean = mean + (1 - beta1) * difference
                first = torch.full_like(difference, self.eps**2)
                square = self._square(server.get(f"{name}/square", first), difference.square())
                step = mean / (square.sqrt() + self.eps)
                memory[f"{name}/square"] = square
            memory[f"{name}/mean"] = mean
            moved[name] = shared[name] + (self.server_lr * step).to(shared[name])
        return moved, memory

    def _square(self, kept: Tensor, square: Tensor) -> Tensor:
        """v of an optimiser, from what it was and D^2."""
        if self.server_optimizer == "adagrad":
            return kept + square
        if self.server_optimizer == "adam":
            return self.beta2 * kept + (1 - self.beta2) * square
        return kept - (1 - self.beta2) * square * torch.sign(kept - square)
