"""FedAvg (McMahan et al., 2017): one model for everybody. Round t, client i of the cohort:

    w_i <- w_t
    tau times   w_i <- w_i - beta grad l_i(w_i)
    sent        w_i - w_t
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i

w is backbone and head together. tau is `steps`, or as many as `epochs` of mini-batches take; beta is `client_lr`.
With `fine_tune` a client takes that many steps (or epochs) on the whole model, or on the head alone, before its model
is used or judged; none of them is kept. Named parts of w that are personal take the same steps and stay with their
client.
"""

from __future__ import annotations

from typing import Literal

from pflego.algorithms.base import Family
from pflego.algorithms.local_steps import LocalSteps
from pflego.algorithms.registry import method
from pflego.declaration import Count
from pflego.exchange.round import Round, Update
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.randomness import torch_generator
from pflego.weights import Weights, minus


@method
class FedAvg(LocalSteps):
    """One model for everybody, averaged.

    Parameters
    ----------
    labels
        What the outputs of a shared head stand for: local or global classes. "global": one output for every class of
        the federation; "local": outputs are numbered anew on every client, as in the paper's tables.
    fine_tune
        Steps, or epochs, that a client takes before its model is used or judged; nothing of them is kept.
    fine_tune_part
        What they move: the whole model, or the head alone, on the features of one forward pass.
    """

    abilities = frozenset({"personal parts", "training mode"})

    labels: Literal["local", "global"] = "global"
    fine_tune: Count = 0
    fine_tune_part: Literal["model", "head"] = "model"

    @property
    def family(self) -> Family:
        """One model, fine-tuned if asked."""
        return "fine-tuned" if self.fine_tune else "one model"

    @property
    def uses_shared_model(self) -> bool:
        """Without fine-tuning everybody uses the one model as it is."""
        return self.fine_tune == 0

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """theta_0 and a head, but for what is personal."""
        if model.personal_head:
            return model.shared_weights()
        generator, head = torch_generator(seed, "common head"), model.head(outputs)
        return {**model.shared_weights(), **head.init(self.start_of(head), generator, model.weight_dtype)}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """Give what is personal: nothing, unless it was named."""
        head = self.new_head(problem, seed) if problem.model.personal_head else {}
        return {**problem.model.personal_weights(), **head}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on a copy of the model; send how far it went, keep what is personal."""
        weights = self.adapt(shared, state, problem)
        own = problem.model.personal_part(weights)
        moved = minus({name: w for name, w in weights.items() if name not in own}, shared)
        return Update({**state, **own}, moved, model=self.personal(shared, weights, problem))

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return the shared model, or what a client has made of it, fine-tuned if asked."""
        weights, problem = {**shared, **state}, problem.at()
        if self.fine_tune_part == "head":
            return {**weights, **self.head_steps(problem, weights, self.fine_tune)}
        return self.descend(problem, weights, duration=self.fine_tune)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau steps on a copy of the model, as in a round."""
        return self.descend(problem, {**shared, **problem.model.personal_part(state)})
