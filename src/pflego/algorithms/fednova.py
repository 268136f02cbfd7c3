"""FedNova (Wang et al., 2020): FedAvg in which nobody counts for more because it took more steps. Round t, client i:

    w_i <- w_t
    tau_i times   v <- m v + grad l_i(w_i),  w_i <- w_i - beta_i v
    sent          d_i = (w_i - w_t) / s_i,   s_i = beta_i sum_{k=1..tau_i} (1 + m + ... + m^(k-1))
    server        w_{t+1} = w_t + (sum_i p_i s_i) sum_i p_i d_i,   p_i = N_i / sum_j N_j

w_i - w_t is a sum of gradients with coefficients that add up to s_i: beta_i tau_i without momentum m, and more with
it. FedAvg adds the sums up, so that it descends sum_i p_i s_i l_i; divided by s_i they are means of gradients, and
what is descended is sum_i p_i l_i. The coefficients hold beta_i as well, for rates that clients measure themselves.

Where all have the same steps and rate it is FedAvg: it makes a difference with `epochs` of mini-batches, which are more
steps for those who have more samples, and with client_lr="auto".

Personal parts take the steps and stay. Running statistics of batch norm are averaged: they are no sum of gradients.
"""

from __future__ import annotations

import torch

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import apart, averaged
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, step

_LENGTH = "length"  # (s_i, 1): of both together a mean can be had, also where some replies are missing


@method
class FedNova(FedAvg):
    """One model for everybody, averaged by how far clients go per step."""

    abilities = frozenset({"personal parts", "training mode"})
    divides_by_counts = True

    def exact(self, name: str) -> bool:
        """The mean length is a ratio."""
        return name == _LENGTH or super().exact(name)

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on a copy of the model; send how far it went, per step, and how many those were."""
        start = self.whole(shared, state, problem)
        rate = self.rate_of(problem.at(), start, list(start))  # before it decays, by as much for everybody
        weights = self.descend(problem, start, rate=rate)
        length = rate * self.gradients_counted(self.steps_of(problem, self.duration))
        moved, statistics = apart(minus({name: weights[name] for name in shared}, shared))
        direction = {name: d / length for name, d in moved.items()} if length else moved
        sent = {**direction, **statistics, _LENGTH: torch.tensor([length, 1.0], dtype=torch.float64)}
        own = self.own_part(problem.model, weights)
        return Update({**state, **own}, sent, model=self.personal(shared, weights, problem))

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Go the mean length in the mean direction."""
        total, count = aggregate[_LENGTH].tolist()
        direction = {name: d for name, d in apart(aggregate)[0].items() if name != _LENGTH}
        moved = step(shared, direction, -total / count if count else 0.0)
        return {**moved, **averaged(shared, aggregate)}, server
