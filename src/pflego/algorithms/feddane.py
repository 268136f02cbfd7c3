"""FedDANE (Li et al., 2019): FedProx whose clients know where the others would go. Round t, two exchanges, client i:

    first       g_i = grad l_i(w_t),  sent to the server;  g = sum_i N_i g_i / sum_i N_i
    second      w_i <- w_t
    tau times   w_i <- w_i - beta (grad l_i(w_i) + g - g_i + mu (w_i - w_t))
    sent        w_i - w_t
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i

What a client descends has the cohort's gradient at w_t, and its own curvature. g_i is computed again in the second
exchange, for a pass each way and nothing to keep. The authors draw other clients for the second exchange; here both
have the same cohort. Outside of rounds nobody knows g: who adapts takes FedProx's steps.

g_i is what it corrects, the gradient of a step, so that it is taken in training mode where a backbone has one: with the
statistics of the batch, which is all samples, and with the same masks of dropout in both exchanges. It moves no running
statistics. Personal parts take steps along their own gradient, without g and without the pull.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from pflego.algorithms.fedprox import FedProx
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import apart
from pflego.exchange.round import Round, Update
from pflego.federation.roster import ClientId
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, with_prefix

_MEAN = "gradient/"  # begins the names of g, which the server keeps from the first exchange to the second
_ROUND = "round"  # the one that g is of


@method
class FedDane(FedProx):
    """FedProx with the cohort's gradient in place of a client's own, for a second exchange per round.

    Parameters
    ----------
    mu
        The strength of the pull to the shared model.
    """

    abilities = frozenset({"personal parts", "training mode"})

    exchanges: ClassVar[int] = 2

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """First send the gradient, then take tau steps on a copy of the model and send how far it went."""
        received = {name: w for name, w in shared.items() if not name.startswith(_MEAN)}
        start = self.whole(received, state, problem)
        at_start = problem.gradient(problem.model.with_own_statistics(start), masks=problem.masks("gradient"))
        own = {name: g for name, g in at_start.items() if name in received}
        if now.exchange == 0:
            return Update(state, with_prefix(_MEAN, own), model=start)
        slope = {name: shared[_MEAN + name] - g for name, g in own.items()}
        ended = self.descend(problem, start, anchor=received, mu=self.mu, slope=slope)
        return Update(
            {**state, **self.own_part(problem.model, ended)},
            minus({name: ended[name] for name in received}, received),
            model=self.personal(received, ended, problem),
        )

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """First keep the mean gradient, then add the mean of how far models went."""
        if now.exchange == 0:
            return shared, {**aggregate, _ROUND: torch.tensor(now.number)}
        return super().server_step(now, shared, {}, aggregate)

    def answers(
        self, now: Round, shared: Weights, server: Weights, clients: Sequence[ClientId]
    ) -> Mapping[ClientId, Weights]:
        """Send everybody the mean gradient in the second exchange."""
        if now.exchange == 0:
            return {}
        known = _ROUND in server and int(server[_ROUND]) == now.number
        weights, _ = apart(shared)
        zeros = {_MEAN + name: torch.zeros_like(w) for name, w in weights.items()}  # no gradient has arrived
        mean = {name: g for name, g in server.items() if name != _ROUND} if known else zeros
        return dict.fromkeys(clients, mean)
