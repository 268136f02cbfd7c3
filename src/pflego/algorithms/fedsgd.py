"""FedSGD (McMahan et al., 2017): stochastic gradient descent on everybody's loss. Round t, client i of the cohort:

    g_i    = grad l_i(w_t),  sent to the server
    server w_{t+1} = w_t - beta sum_i N_i g_i / sum_i N_i

w is backbone and head together. FedAvg with one step and a rate that all clients have in common is the same; here
gradients travel, so that it stays exact where beta="auto" measures a rate of their own for clients: the server then
takes the smallest of the cohort's. A participant is judged after a step of its own.

Like FedAvg's step the gradient is taken in training mode, where a backbone has one; it moves the running statistics of
batch norm once, and these are averaged. Personal parts take the step at home, at the client's own rate.

Under an objective a client sends phi'(l_i(w_t)) g_i, a decay of the weights being part of l_i; loss and gradient come
from the same pass over all of its samples. With everyone in the round that is gradient descent on
F = sum_i a_i phi(l_i), and with some of them unbiased under missing="inverse" alone: as without an objective, the
weights of a cohort sum to one. beta="auto" is then 1/L of phi(l_i).
"""

from __future__ import annotations

from typing import ClassVar

import torch

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import apart, averaged
from pflego.exchange.objective import Emphasis
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.learning.theory import best_rate
from pflego.weights import Weights, minus, norm, step, weighted_sum

_INVERSE = "inverse rate"  # 1/beta as a client has measured it: the largest counts


@method
class FedSGD(FedAvg):
    """One model for everybody, and one gradient per client and round.

    Parameters
    ----------
    batch_size
        Samples that a gradient is of, drawn anew in every round; all of a client's if not given.
    client_lr
        beta, the rate of the server's step. "auto": the smallest of the cohort's 1/L.
    """

    abilities = frozenset({"personal parts", "training mode"})

    steps: ClassVar[int] = 1  # type: ignore[misc]  # no field: more than one would be FedAvg
    epochs: ClassVar[None] = None  # type: ignore[misc]

    @property
    def follows_objectives(self) -> bool:
        """The gradient is that of the full loss, unless it is of a batch."""
        return self.batch_size is None

    @property
    def largest(self) -> frozenset[str]:
        """Of inverse rates the server takes the largest."""
        return frozenset([_INVERSE] if self.client_lr == "auto" else [])

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Send the gradient at the shared model."""
        start = self.whole(shared, state, problem)
        rate = self.rate_of(problem, start, list(start))
        start = problem.model.with_own_statistics(start)  # which the pass moves
        loss = None
        if now.emphasis is None:
            [batch] = problem.batches(self.batch_size, 1)
            gradient = self._with_decay(problem.gradient(start, batch, masks=problem.masks()), start)
        else:
            gradient, loss = self._gradient_and_loss(start, problem)
            if self.client_lr == "auto":
                rate = _emphasised_rate(now.emphasis, rate, self._decayed(now), loss, gradient)
            gradient = weighted_sum([(now.emphasis.factor(loss), gradient)])
        stepped = step(start, gradient, rate)
        _, moved = apart(minus({name: stepped[name] for name in shared}, shared))
        measured = {
            name: torch.tensor(1 / rate if rate else 0.0, dtype=torch.float64) for name in self.largest
        }
        return Update(
            {**state, **self.own_part(problem.model, stepped)},
            {**{name: g for name, g in gradient.items() if name in shared}, **moved, **measured},
            joint_loss=loss,
            model=self.personal(shared, stepped, problem),
        )

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Make one step along the mean gradient."""
        if self.client_lr == "auto":
            inverse = float(aggregate[_INVERSE])
            rate = 1 / inverse if inverse else 0.0
        else:
            rate = self.client_lr * self._decayed(now)
        moved = step(shared, apart(aggregate)[0], rate)
        return {**moved, **averaged(shared, aggregate)}, server

    def _gradient_and_loss(self, weights: Weights, problem: Problem) -> tuple[Weights, float]:
        """Compute both over all samples, in one pass each way."""
        forward = problem.forward(weights, masks=problem.masks())
        at_head = problem.head_gradient(weights, forward.features)
        decay = self.weight_decay / 2 * norm(apart(weights)[0]) ** 2
        gradient = {**forward.backward(at_head.features), **at_head.head}
        return self._with_decay(gradient, weights), problem.head_loss(weights, forward.features) + decay

    def _with_decay(self, gradient: Weights, weights: Weights) -> Weights:
        if not self.weight_decay:
            return gradient
        return weighted_sum([(1.0, gradient), (self.weight_decay, apart(weights)[0])])

    def _decayed(self, now: Round) -> float:
        """Give the part of the first rate that is left in this round."""
        return self.lr_decay ** (now.number - 1)


def _emphasised_rate(
    emphasis: Emphasis, rate: float, decayed: float, loss: float, gradient: Weights
) -> float:
    """Turn the rate for l_i, 1/L in part, into that for phi(l_i)."""
    if not rate:
        return rate
    return decayed * best_rate(emphasis.smoothness(decayed / rate, loss, norm(gradient) ** 2))
