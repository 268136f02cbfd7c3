"""LG-FedAvg (Liang et al., 2020): FedPer mirrored. Backbones stay at home, the head is averaged. Round t, client i:

    W_i <- W_t
    tau times   (theta_i, W_i) <- (theta_i, W_i) - beta grad l_i(W_i, theta_i)
    sent        W_i - W_t
    server      W_{t+1} = W_t + sum_i N_i (W_i - W_t) / sum_i N_i

Its authors start from a model that FedAvg has trained, without which backbones have little in common for a head to
share: they take client_lr=0.05, epochs=1, batch_size=10 on MNIST. A model's present weights are theta_0, and a
function can give the first head:

    first = pflego.train(federation, model, pflego.FedAvg(), rounds=100)
    start = pflego.Model(first.personal_model(federation.ids[0]).backbone, features=model.features)
    algorithm = pflego.LGFedAvg(head_init=lambda rows, columns, generator: first.shared["head"])
    run = pflego.train(federation, start, algorithm, rounds=100)

All of the backbone is personal, whatever a model says, running statistics of batch norm included.
"""

from __future__ import annotations

from typing import Literal

from pflego.algorithms.base import Family
from pflego.algorithms.local_steps import LocalSteps
from pflego.algorithms.registry import method
from pflego.errors import ModelError
from pflego.exchange.round import Round, Update
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.randomness import torch_generator
from pflego.weights import Weights, minus


@method
class LGFedAvg(LocalSteps):
    """A shared head, averaged, on personal backbones.

    Parameters
    ----------
    labels
        What the outputs of the shared head stand for: local or global classes. "global": one output for every class of
        the federation; "local": outputs are numbered anew on every client.
    """

    abilities = frozenset({"personal parts", "training mode"})

    labels: Literal["local", "global"] = "global"

    @property
    def family(self) -> Family:
        """The head is shared, the backbone is not."""
        return "split"

    def check_model(self, model: Model) -> None:
        """Refuse a personal head: it is all that is shared."""
        super().check_model(model)
        if model.personal_head:
            raise ModelError(
                "lgfedavg shares nothing but the head: leave head out of personal, or take Local"
            )

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """W_0."""
        generator, head = torch_generator(seed, "common head"), model.head(outputs)
        return head.init(self.start_of(head), generator, model.weight_dtype)

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """theta_i = theta_0."""
        return problem.model.weights()

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Train head and backbone; keep the backbone, send how far the head went."""
        weights = self.adapt(shared, state, problem)
        theta = {name: weights[name] for name in state}
        moved = minus({name: weights[name] for name in shared}, shared)
        return Update(theta, moved, model=weights)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau joint steps, as in a round: a backbone, and a head beside the shared one."""
        return self.descend(problem, {**shared, **state})

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Fit a backbone to the shared head, in tau steps."""
        theta = list(state)
        weights = self.descend(problem, {**shared, **state}, duration=steps, only=theta)
        return {name: weights[name] for name in theta}
