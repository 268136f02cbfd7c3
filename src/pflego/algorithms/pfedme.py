"""pFedMe (Dinh et al., 2020): a personal model near a local one, which follows it. Round t, client i:

    w_i, theta_i <- w_t
    R times     K times   theta_i <- theta_i - beta (grad l_i(theta_i) + lambda (theta_i - w_i)),  on one batch
                w_i <- w_i - eta lambda (w_i - theta_i)
    kept        theta_i
    sent        w_i - w_t
    server      w_{t+1} = w_t + b sum_i N_i (w_i - w_t) / sum_i N_i

theta_i, a whole model, is what client i uses. lambda (w - theta_i) is the gradient of the Moreau envelope of l_i,
min_theta l_i(theta) + lambda/2 |theta - w|^2, where theta_i is at its minimum: w_i descends that in place of l_i. The
authors' values are lambda = 15, K = 5, R = 20, eta = 0.005, beta = 0.1, b = 1, batches of 20, and clients that count
the same (weighting="equal"); beta (L + lambda) must stay below 2, which theirs do on smooth losses alone. R is
`steps`, K `inner_steps`, lambda `mu`, beta `client_lr`, eta `local_lr`, b `server_lr`.

Parts that are personal are theta_i's alone: they begin a round where the last one left them, and nothing pulls them.
Running statistics of batch norm are those of theta_i's passes, for w_i makes none: they are sent and averaged, b or no.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import apart, averaged
from pflego.algorithms.stepping import Rule, take_steps
from pflego.declaration import Positive, Strength, Whole
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, step


@method
class PFedMe(FedAvg):
    """A personal model for every client, and a shared one that is pulled to them.

    Parameters
    ----------
    steps
        R, how often the local model follows the personal one per round.
    inner_steps
        K, gradient steps of the personal model each time.
    mu
        lambda, the strength of the pull between the personal and the local model.
    local_lr
        eta, the rate of the local model; times mu it is the share of the way to the personal model that it goes, so
        that the two together should be below 1.
    server_lr
        b, the share of the way to the mean of the local models that the shared one goes; more than 1 goes beyond it.
    """

    abilities = frozenset({"personal parts", "training mode"})

    steps: Whole = 10
    inner_steps: Whole = 5
    mu: Strength = 1.0
    local_lr: Positive = 0.1
    server_lr: Positive = 1.0
    fine_tune: ClassVar[int] = 0  # type: ignore[misc]  # no field: a personal model is trained in rounds
    fine_tune_part: ClassVar[str] = "model"  # type: ignore[misc]

    @property
    def family(self) -> Family:
        """A model of its own, pulled to the shared one."""
        return "mixed"

    @property
    def uses_shared_model(self) -> bool:
        """Everybody uses a model of its own."""
        return False

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """theta_i: theta_0 and a head of its own, until its first round."""
        return {**problem.model.weights(), **self.new_head(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Train the personal and the local model; keep the first, send how far the second went."""
        personal, local = self._solve(shared, state, problem)
        return Update(personal, minus(local, shared))

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Go a share of the way to the mean of the local models."""
        moved = step(shared, apart(aggregate)[0], -self.server_lr)
        return {**moved, **averaged(shared, aggregate)}, server

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """theta_i."""
        return {**shared, **state}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Train a personal model from the shared one, as in a round."""
        personal, _ = self._solve(shared, state, problem)
        return personal

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Train a personal model from the shared one, as in anybody's round."""
        personal, _ = self._solve(shared, state, problem, steps)
        return personal

    def _solve(
        self, shared: Weights, state: Weights, problem: Problem, duration: int | None = None
    ) -> tuple[Weights, Weights]:
        """Give theta_i and w_i after R times K steps."""
        personal, (local, _), masks = self.whole(shared, state, problem), apart(shared), problem.masks()
        names = list(personal)
        rate = self.rate_of(problem, personal, names, self.mu)

        def gradient(weights: Weights, batch: Tensor | None) -> Weights:
            return problem.gradient(weights, batch, masks=masks)

        times = self.steps_of(problem, self.duration if duration is None else duration)
        for batch in problem.batches(self.batch_size, times):
            rule = Rule(rate, self.momentum, self.weight_decay, anchor=local, mu=self.mu)
            batches = [batch] * self.inner_steps
            personal = take_steps(gradient, personal, names, batches, rule)
            local = step(local, minus(local, personal), self.local_lr * self.mu)
        return personal, {**{name: personal[name] for name in shared}, **local}
