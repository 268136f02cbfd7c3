"""SCAFFOLD (Karimireddy et al., 2020): FedAvg whose steps are corrected by control variates. Round t, client i:

    y_i <- x_t
    tau times   y_i <- y_i - beta (grad l_i(y_i) - c_i + c)
    once        c_i' = c_i - c + (x_t - y_i) / (tau beta)                  its option II
    sent        y_i - x_t and c_i' - c_i;  c_i' is kept
    server      x_{t+1} = x_t + eta_g sum_i a_i (y_i - x_t) / sum_i a_i    over the participants
                c_{t+1} = c_t + sum_i a_i (c_i' - c_i)                     over the participants

x is backbone and head together, eta_g is `server_lr`. c_i estimates client i's gradient and c = sum_i a_i c_i, over
everybody, that of the federation: both start at zero, and c travels with x, so that twice as much is sent. Its
authors count clients the same, a_i = 1 / I (weighting="equal"); c then grows by the participants' sum over I, not over
r. They have server_lr=1 and no momentum; with momentum, tau is the sum of the weights that it gives to gradients.

Only what gradients move and everybody shares has control variates. Personal parts take steps without correction and
stay; running statistics of batch norm are averaged, whatever eta_g.
"""

from __future__ import annotations

import torch

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import apart, averaged
from pflego.declaration import Positive
from pflego.exchange.round import Round, Update
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, of_prefix, plus, with_prefix

_CONTROL = "control/"  # before a weight's name: its control variate


@method
class Scaffold(FedAvg):
    """One model for everybody, averaged, whose clients correct their steps for what the others want.

    Parameters
    ----------
    server_lr
        eta_g, the share of the mean difference that the server takes.
    """

    abilities = frozenset({"personal parts", "training mode"})

    needs_equal_chances = True

    server_lr: Positive = 1.0

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """x_0, and c = 0."""
        weights = super().init_shared(model, outputs, seed)
        return {**weights, **_no_controls(weights)}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """c_i = 0, and what is personal."""
        first = super().init_shared(problem.model, problem.outputs, seed)
        return {**_no_controls(first), **super().init_state(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau corrected steps on a copy of the model; send how far it and the control variate went."""
        steps = self.steps_of(problem, self.duration)
        moved, rate = self._corrected(shared, state, problem)
        start, common, own = _model(shared), of_prefix(_CONTROL, shared), of_prefix(_CONTROL, state)
        reach = rate * self.gradients_counted(steps)
        control = {name: own[name] - c + (start[name] - moved[name]) / reach for name, c in common.items()}
        way = minus({name: moved[name] for name in start}, start)
        kept = {**with_prefix(_CONTROL, control), **self.own_part(problem.model, moved)}
        sent = {**way, **with_prefix(_CONTROL, minus(control, own))}
        return Update(kept, sent, model=self.personal(shared, moved, problem))

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Move the model by the mean of the differences, c by their sum."""
        factors = {name: now.alpha if name.startswith(_CONTROL) else self.server_lr for name in shared}
        moved = plus(shared, {name: d * factors[name] for name, d in aggregate.items()})
        return {**moved, **averaged(shared, aggregate)}, server

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return the shared model, or what a client has made of it, fine-tuned if asked."""
        return super().personal(_model(shared), _model(state), problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau corrected steps on a copy of the model, as in a round."""
        return self._corrected(shared, state, problem)[0]

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Return c_i = 0: what a newcomer uses is the shared model, with its own parts fitted to it."""
        own = self.own_part(problem.model, state)
        return {**state, **self.fitted(_model(shared), own, problem, steps)}

    def _corrected(self, shared: Weights, state: Weights, problem: Problem) -> tuple[Weights, float]:
        """Take steps along grad l_i - c_i + c; give where they end, and their rate."""
        start = self.whole(_model(shared), state, problem)
        first = self.rate_of(problem.at(), start, list(start))  # before it decays
        correction = minus(of_prefix(_CONTROL, shared), of_prefix(_CONTROL, state))
        moved = self.descend(problem, start, rate=first, slope=correction)
        return moved, first * self.decayed(problem.round_number)


def _no_controls(weights: Weights) -> Weights:
    """Give control variates of zeros, of all that gradients move."""
    return with_prefix(_CONTROL, {name: torch.zeros_like(w) for name, w in apart(weights)[0].items()})


def _model(weights: Weights) -> Weights:
    """Leave control variates out."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith(_CONTROL)}
