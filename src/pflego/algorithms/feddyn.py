"""FedDyn (Acar et al., 2021): FedAvg whose clients' losses are changed so that their optima agree. Round t, client i:

    w_i <- w_t
    tau times   w_i <- w_i - beta (grad l_i(w_i) - g_i + mu (w_i - w_t))
    once        g_i' = g_i - mu (w_i - w_t)                                  kept
    sent        w_i - w_t
    server      h_{t+1} = h_t - mu sum_i a_i (w_i - w_t)                     over the participants
                w_{t+1} = w_t + sum_i a_i (w_i - w_t) / sum_i a_i - h_{t+1} / mu

The steps descend l_i(w) - <g_i, w> + mu/2 |w - w_t|^2. g_i comes to client i's gradient at its optimum and
h = sum_i a_i g_i, over everybody, to that of the federation: both start at zero, and where they have settled, h = 0
and w minimises sum_i a_i l_i. Its authors call mu alpha, count clients the same, a_i = 1 / I (weighting="equal"; h
then moves by the participants' sum over I, not over r), and have mu from 0.01 to 0.1, client_lr=0.1, lr_decay=0.998,
weight_decay=1e-3, epochs=5, batch_size=50.

Only what gradients move and everybody shares has entries in g_i and h. Personal parts take steps on l_i as it is and
stay; running statistics of batch norm are averaged.
"""

from __future__ import annotations

import torch

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import apart, averaged
from pflego.declaration import LearningRate
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, of_prefix, with_prefix

_SLOPE = "slope/"  # before a weight's name: its entry of g_i


@method
class FedDyn(FedAvg):
    """One model for everybody, averaged, whose clients' losses agree on where it ends.

    Parameters
    ----------
    mu
        The strength of the pull to the shared model, and of what is remembered of every pull.
    """

    abilities = frozenset({"personal parts", "training mode"})

    needs_equal_chances = True

    mu: LearningRate = 0.1  # above zero, and searched for as rates are

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """g_i = 0, and what is personal."""
        first, _ = apart(self.init_shared(problem.model, problem.outputs, seed))
        slopes = with_prefix(_SLOPE, {name: torch.zeros_like(w) for name, w in first.items()})
        return {**slopes, **super().init_state(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on the changed loss; keep how far they went, and send it."""
        weights = self.adapt(shared, state, problem)
        moved = minus({name: weights[name] for name in shared}, shared)
        slopes = {name: g - self.mu * moved[name] for name, g in of_prefix(_SLOPE, state).items()}
        kept = {**with_prefix(_SLOPE, slopes), **self.own_part(problem.model, weights)}
        return Update(kept, moved, model=self.personal(shared, weights, problem))

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """h goes the participants' way, by their share of everybody; the model goes their mean way, and on by h."""
        weights, _ = apart(shared)
        memory = {
            name: server.get(name, torch.zeros_like(w)) - self.mu * now.alpha * aggregate[name].to(w)
            for name, w in weights.items()
        }
        moved = {name: w + aggregate[name].to(w) - memory[name] / self.mu for name, w in weights.items()}
        return {**moved, **averaged(shared, aggregate)}, memory

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return the shared model, or what a client has made of it, fine-tuned if asked."""
        model = {name: w for name, w in state.items() if not name.startswith(_SLOPE)}
        return super().personal(shared, model, problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau steps on the changed loss, as in a round."""
        slope = {name: -slope for name, slope in of_prefix(_SLOPE, state).items()}
        start = self.whole(shared, state, problem)
        return self.descend(problem, start, anchor=shared, mu=self.mu, slope=slope)

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Return g_i = 0: what a newcomer uses is the shared model, with its own parts fitted to it."""
        own = self.own_part(problem.model, state)
        return {**state, **self.fitted(shared, own, problem, steps)}
