"""Fed-RoD (Chen and Chao, 2022): a generic model that does not mind who holds what, and personal heads on top of it.

    z_g = W phi,  z_p = P_i phi,  phi = phi(x; theta);  n_c samples of client i are of class c
    generic loss    l_i^g = mean of CE(z_g + log n_c, y)                  balanced softmax
    personal loss   l_i^p = mean of CE(z_g + z_p, y)

Round t, client i:

    theta_i, W_i <- theta_t, W_t
    tau times   (theta_i, W_i) <- (theta_i, W_i) - beta grad l_i^g(theta_i, W_i)
                P_i <- P_i - beta grad_P l_i^p                            theta_i and W_i held, as before the step
    sent        theta_i - theta_t and W_i - W_t;  P_i is kept
    server      (theta, W)_{t+1} = (theta, W)_t + their means, by N_i over the participants

A class that client i has not, n_c = 0, has no part in its generic loss, so that it does not unlearn what others teach.
Where samples have weights, n_c is their sum.
The other side of that: classes that nobody has together are told apart by nothing in W. On digits with two of ten
classes a client FedAvg's model was by far the better generic one, with five they were level. Two models are served:
W + P_i for the client, W for whoever comes without data (`serve`); of a finished run, W is in `run.shared`. P_i = 0 at
first. In regression there is nothing to balance.

Parts of the backbone that are personal learn by the generic loss, as theta does, and stay. In training mode both losses
see the features of the same pass; running statistics of batch norm are averaged.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.stepping import Rule, take_steps
from pflego.errors import ModelError
from pflego.exchange.round import Round, Update
from pflego.learning.heads import HEAD, LinearHead
from pflego.learning.heads.fit import fit_head
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.learning.weighted import labels_in
from pflego.weights import Weights, minus

_OWN = f"own/{HEAD}"  # P_i


@method
class FedRoD(FedAvg):
    """A generic model for everybody, trained by a balanced loss, and a personal head beside its own.

    Parameters
    ----------
    serve
        Which model a client uses and is judged by: "personal", with its own head added, or "generic", as it is. Both
        are trained either way.
    """

    abilities = frozenset({"personal parts", "training mode"})

    serve: Literal["personal", "generic"] = "personal"

    @property
    def family(self) -> Family:
        """A shared model with a personal part, or without."""
        return "split" if self.serve == "personal" else super().family

    @property
    def uses_shared_model(self) -> bool:
        """Only the generic model is everybody's."""
        return self.serve == "generic" and super().uses_shared_model

    def check_model(self, model: Model) -> None:
        """Refuse a personal head in the place of the generic one."""
        super().check_model(model)
        if model.personal_head:
            raise ModelError(
                "fedrod has a personal head for everybody beside the generic one: leave head out of personal"
            )

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """theta_0 and W_0."""
        if not isinstance(model.head(outputs), LinearHead):
            raise ModelError(
                "fedrod adds a personal head to the generic one, and needs linear heads for that"
            )
        return super().init_shared(model, outputs, seed)

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """P_i = 0, and what of the backbone is personal."""
        return {_OWN: problem.new_head("zeros", seed)[HEAD], **super().init_state(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on the generic model and the personal head; keep the latter, send how far the former went."""
        moved, own = self._steps(shared, state, problem)
        way = minus({name: moved[name] for name in shared}, shared)
        kept = {**own, **self.own_part(problem.model, moved)}
        return Update(kept, way, model=self.personal(moved, kept, problem))

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """W + P_i on theta, or W alone; or what a client has made of it, fine-tuned if asked."""
        own = {name: w for name, w in state.items() if name != _OWN}
        if _OWN in state and self.serve == "personal":
            own[HEAD] = shared[HEAD] + state[_OWN]
        return super().personal(shared, own, problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Make the model that a client has at the end of a round."""
        moved, own = self._steps(shared, state, problem)
        return {**moved, HEAD: moved[HEAD] + own[_OWN]} if self.serve == "personal" else moved

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Fit a personal head beside the generic one, on the backbone as it is."""
        parts = self.fitted(shared, self.own_part(problem.model, state), problem, steps)
        features = problem.forward({**shared, **parts}).features
        fitted = fit_head(problem, {HEAD: shared[HEAD] + state[_OWN]}, features, steps=steps)
        return {_OWN: fitted[HEAD] - shared[HEAD], **parts}

    def _steps(self, shared: Weights, state: Weights, problem: Problem) -> tuple[Weights, Weights]:
        """Take the steps of a round; give the generic model and the personal head."""
        balance, masks = _Balance(problem), problem.masks()

        def gradient(weights: Weights, batch: Tensor | None) -> Weights:
            here = problem if batch is None else problem.part(batch)
            forward = here.forward(weights, masks=masks)
            at_generic, slopes = balance.gradient(weights[HEAD], forward.features, here.targets)
            both = {HEAD: weights[HEAD] + weights[_OWN]}
            at_personal = here.head_gradient(both, forward.features).head[HEAD]
            return {**forward.backward(slopes), HEAD: at_generic, _OWN: at_personal}

        start = self.whole(shared, state, problem)
        rate = self.rate_of(problem, start, list(start))
        batches = problem.batches(self.batch_size, self.steps_of(problem, self.duration))
        weights = {**start, _OWN: state[_OWN]}
        rule = Rule(rate, self.momentum, self.weight_decay)
        ended = take_steps(gradient, weights, list(weights), batches, rule)
        return {name: ended[name] for name in start}, {_OWN: ended[_OWN]}


class _Balance:
    """A client's generic loss: log n_c stands in the bias of the classes it has, and the others are left out."""

    def __init__(self, problem: Problem) -> None:
        labels, weights = labels_in(problem.task, problem.targets), problem.weights
        counts = (labels if weights is None else labels * weights[:, None]).sum(dim=0)  # n_c, (K,)
        if len(problem.classes) == 0:
            counts = torch.ones_like(counts)
        self.held = counts.nonzero().squeeze(1)
        self.prior = counts[self.held].log()
        self.columns = self.held  # of the targets: the last one has weights, where samples have them
        if weights is not None:
            self.columns = torch.cat([self.held, self.held.new_tensor([len(counts)])])
        self.head = problem.model.head(len(self.held))
        self.task = problem.task

    def gradient(self, head: Tensor, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradient of the balanced loss with respect to W, (K, M + 1), and to the features."""
        held = head[self.held]
        held[:, -1] += self.prior
        found = self.head.gradient({HEAD: held}, features, targets[:, self.columns], self.task)
        gradient = torch.zeros_like(head)
        gradient[self.held] = found.head[HEAD]
        return gradient, found.features
