"""UGA (Yao et al., 2019), "gradient return": the shared model is where clients start well from. Round t, client i:

    w_i <- w_t
    tau - 1 times   w_i <- w_i - beta grad l_i(w_i)
    sent            g_i = grad l_i(w_i(w_t)), in w_t
    server          w_{t+1} from w_t and sum_i N_i g_i / sum_i N_i, by an optimiser of rate rho

FedAvg averages where clients ended; this is gradient descent on sum_i N_i l_i(w_i(w)) / sum_i N_i, their loss after
their steps, as a function of where they start. Backwards through the steps, with the Hessian H of l_i at each,

    g <- grad l_i(w_i);    from the last step to the first    g <- (I - beta H) g

order="first" leaves the Hessians out. The steps may be on mini-batches, with momentum and a decay; the gradient at the
end is of all samples. With tau = 1 both are FedSGD. The authors' further step of the server, on data of its own, is
left out. A client uses the model after its tau - 1 steps, which is what is trained; the authors, whose clients differ
less and take fewer steps, use the shared model as it is (steps_before_use=False). tau is `steps`, or E `epochs` of
which the last one is the gradient; beta is `client_lr`, rho `server_lr`.

Where a backbone has a training mode, all tau gradients are taken in it, and the Hessians with the same batches and
masks; running statistics of batch norm are constants to them, and are averaged. Personal parts take the steps, one more
of the same rate along the last gradient as it stands, tau in all, and stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.optimizers import OptimizerName, optimizer_step
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import apart, averaged
from pflego.algorithms.stepping import Rule, take_steps
from pflego.declaration import LearningRate
from pflego.errors import ModelError
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, step


@method
class UGA(FedAvg):
    """One model for everybody, trained to be good after a client's steps.

    Parameters
    ----------
    steps
        tau, gradients per round: steps from the shared model, and the one that is sent.
    order
        "second": through the steps, for a pass each way more per step, and the memory of as many models as there are
        steps. "first": as if a client's model moved as its start does.
    server_lr
        rho, the rate of the server's step.
    server_optimizer
        "adam", "sgd", as its authors have it, or any other of torch.optim.
    steps_before_use
        Whether a client takes its steps before its model is used or judged; nothing of them is kept.
    """

    abilities = frozenset({"personal parts", "training mode"})

    order: Literal["first", "second"] = "second"
    server_lr: LearningRate = 0.003
    server_optimizer: OptimizerName = "adam"
    steps_before_use: bool = True
    fine_tune: ClassVar[int] = 0  # type: ignore[misc]  # no field: these are its steps
    fine_tune_part: ClassVar[str] = "model"  # type: ignore[misc]

    @property
    def family(self) -> Family:
        """One model, and a client's steps from it."""
        return "fine-tuned" if self.steps_before_use else "one model"

    @property
    def uses_shared_model(self) -> bool:
        """Without steps everybody uses the one model as it is."""
        return not self.steps_before_use

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Take the steps and send the gradient at their end, in the weights they began at."""
        start = self.whole(shared, state, problem)
        parts = self.own_part(problem.model, start)
        steps = self.steps_of(problem, self.duration - 1)
        first = self.rate_of(problem.at(), start, list(start)) if steps or parts else 0.0
        rate = first * self.decayed(problem.round_number)
        trail: list[_Place] = []
        if self.order == "first":
            ended = self.descend(problem, start, duration=self.duration - 1, rate=first)
        else:
            ended, trail = self._leave_trail(problem, start, steps, rate)
        ended = problem.model.with_own_statistics(ended)
        last = problem.gradient(ended, masks=problem.masks("gradient"))
        gradient = self._back(problem, trail, last, rate)
        sent = {name: g for name, g in gradient.items() if name in shared}
        _, moved = apart(minus({name: ended[name] for name in shared}, shared))
        own = step({name: ended[name] for name in parts}, last, rate)
        return Update({**state, **own}, {**sent, **moved}, model={**ended, **own})

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Make one step along the mean gradient."""
        weights, _ = apart(shared)
        gradient, _ = apart(aggregate)
        stepped, memory = optimizer_step(self.server_optimizer, self.server_lr, weights, gradient, server)
        return {**shared, **stepped, **averaged(shared, aggregate)}, memory

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return what a client has made of the shared model, or makes of it now."""
        if not self.steps_before_use or state.keys() >= shared.keys():
            return {**shared, **state}
        return self.adapt(shared, state, problem.at())

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Take the steps on a copy of the model, as in a round."""
        return self.descend(problem, self.whole(shared, state, problem), duration=self.duration - 1)

    def _leave_trail(
        self, problem: Problem, start: Weights, steps: int, rate: float
    ) -> tuple[Weights, list[_Place]]:
        """Take the steps; give where they end, and where each began."""
        masks, trail = problem.masks(), []

        def gradient_at(weights: Weights, batch: Tensor | None) -> Weights:
            here = {name: w.clone() for name, w in weights.items()}  # which the step then changes
            trail.append(_Place(here, batch, None if masks is None else masks.get_state()))
            return problem.gradient(weights, batch, masks=masks)

        rule = Rule(rate, self.momentum, self.weight_decay)
        batches = problem.batches(self.batch_size, steps)
        return take_steps(gradient_at, start, list(start), batches, rule), trail

    def _back(self, problem: Problem, trail: list[_Place], gradient: Weights, rate: float) -> Weights:
        """Turn the gradient at the end of a trail into that in the weights at its beginning."""
        velocity = {name: torch.zeros_like(g) for name, g in gradient.items()}  # the gradient in it
        for place in reversed(trail):
            velocity = {name: self.momentum * v - rate * gradient[name] for name, v in velocity.items()}
            try:
                bent = problem.curvature(place.weights, velocity, place.batch, masks=place.masks())
            except RuntimeError as error:
                raise ModelError(
                    "the backbone cannot be differentiated twice, as uga needs it: take order='first'"
                ) from error
            gradient = {
                name: g + bent[name] + self.weight_decay * velocity[name] for name, g in gradient.items()
            }
        return gradient


@dataclass(frozen=True)
class _Place:
    """Where a step began, and what it saw: its batch, and the state of the generator of its masks."""

    weights: Weights
    batch: Tensor | None
    drawn: Tensor | None

    def masks(self) -> torch.Generator | None:
        """Give a generator that draws the same masks again."""
        return None if self.drawn is None else torch.Generator().set_state(self.drawn)
