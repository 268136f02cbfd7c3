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
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.local_steps import Rule, take_steps
from pflego.algorithms.optimizers import OptimizerName, optimizer_step
from pflego.algorithms.registry import method
from pflego.declaration import LearningRate
from pflego.errors import ModelError
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.weights import Weights


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
        if self.order == "first":
            ended = self.adapt(shared, state, problem)
            gradient = problem.gradient(ended)
        else:
            ended, gradient = self._through_steps(shared, problem)
        return Update(state, gradient, model=ended)

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Make one step along the mean gradient."""
        return optimizer_step(self.server_optimizer, self.server_lr, shared, aggregate, server)

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return what a client has made of the shared model, or makes of it now."""
        if state or not self.steps_before_use:
            return {**shared, **state}
        return self.adapt(shared, state, problem.at())

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Take the steps on a copy of the model, as in a round."""
        return self.descend(problem, shared, duration=self.duration - 1)

    def _through_steps(self, shared: Weights, problem: Problem) -> tuple[Weights, Weights]:
        """Give where the steps end, and the gradient there in the weights they began at."""
        steps = self.steps_of(problem, self.duration - 1)
        rate = self.rate_of(problem, shared, list(shared)) if steps else 0.0
        batches = list(problem.batches(self.batch_size, steps))
        places: list[Weights] = []

        def gradient_at(weights: Weights, batch: Tensor | None) -> Weights:
            places.append({name: w.clone() for name, w in weights.items()})  # which the step then changes
            return problem.gradient(weights, batch)

        rule = Rule(rate, self.momentum, self.weight_decay)
        ended = take_steps(gradient_at, shared, list(shared), batches, rule)
        gradient = problem.gradient(ended)
        velocity = {name: torch.zeros_like(g) for name, g in gradient.items()}  # the gradient in it
        for weights, batch in zip(reversed(places), reversed(batches), strict=True):
            velocity = {name: self.momentum * v - rate * gradient[name] for name, v in velocity.items()}
            try:
                bent = problem.curvature(weights, velocity, batch)
            except RuntimeError as error:
                raise ModelError(
                    "the backbone cannot be differentiated twice, as uga needs it: take order='first'"
                ) from error
            gradient = {
                name: g + bent[name] + self.weight_decay * velocity[name] for name, g in gradient.items()
            }
        return ended, gradient
