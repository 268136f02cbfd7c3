"""FedDBE (Zhang et al., 2023): a shared model and a personal shift of the features. Round t, client i:

    w_i <- w_t
    tau times   on a batch B, with z = mean of phi(x; theta_i) over B and m_i <- (1 - s) m_i + s z, from 0:
                (w_i, b_i) <- (w_i, b_i) - beta grad [ l_B(W_i (phi + b_i)) + kappa/(2M) |m_i - m|^2 ]
    sent        w_i - w_t
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i

b_i holds what is particular to a client's features, the pull to one mean m keeps it out of the shared backbone. Of
earlier batches, m_i holds a number: only z has a gradient. m is found once, by its authors in a first round whose
models are thrown away. Here that is the first round: its clients take their steps without b_i and m, as in FedAvg,
and send m_i beside the difference; m is the mean of those that arrive. Ever after they send zeros in its place.

tau is `steps`, beta `client_lr`, s `mean_share`. The authors have kappa 50 and s 1, or 1 and 0.1 for a ResNet.

Personal parts take the steps and stay. In training mode z is of the features as the step sees them; running statistics
of batch norm are averaged.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import averaged
from pflego.algorithms.stepping import Rule, take_steps
from pflego.declaration import Limits, Strength
from pflego.errors import ModelError
from pflego.exchange.round import Round, Update
from pflego.learning.heads import HEAD, LinearHead
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.learning.weighted import average
from pflego.weights import Weights, minus, plus

SHIFT = "shift"  # b_i, (M,)
MEAN = "mean/features"  # m, (M,)
KNOWN = "mean/known"  # 1 where m is known, 0 before; of a contribution: whether it has a mean


@method
class FedDBE(FedAvg):
    """One model for everybody, and a personal shift of its features.

    Parameters
    ----------
    kappa
        The strength of the pull of a client's mean features to the common mean. 0 leaves the shift alone.
    mean_share
        s, the share of the newest batch in a client's running mean.
    """

    abilities = frozenset({"personal parts", "training mode"})
    divides_by_counts = True

    kappa: Strength = 50.0
    mean_share: Annotated[float, Limits(above=0, most=1)] = 1.0

    @property
    def family(self) -> Family:
        """The model is shared, the shift is not."""
        return "split"

    @property
    def uses_shared_model(self) -> bool:
        """Everybody shifts its features."""
        return False

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """theta_0, a head, and a mean that is not known yet."""
        if not isinstance(model.head(outputs), LinearHead):
            raise ModelError("feddbe shifts the features of linear heads: take a model without head=")
        nowhere = torch.zeros(model.features, dtype=model.weight_dtype)
        return {**super().init_shared(model, outputs, seed), MEAN: nowhere, KNOWN: nowhere.new_zeros(())}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """b_i = 0, and what is personal."""
        shift = torch.zeros(problem.model.features, dtype=problem.model.weight_dtype)
        return {SHIFT: shift, **super().init_state(problem, seed)}

    def exact(self, name: str) -> bool:
        """The mean of features is taken once."""
        return name in (MEAN, KNOWN) or super().exact(name)

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on model and shift; send how far the model went, and in the beginning its mean features."""
        ended, mean = self._steps(shared, state, problem)
        sent = minus({name: ended[name] for name in _model(shared)}, shared)
        known = bool(shared[KNOWN])
        sent[MEAN] = torch.zeros_like(mean) if known else mean
        sent[KNOWN] = shared[KNOWN].new_tensor(0.0 if known else 1.0)
        kept = {SHIFT: ended[SHIFT], **self.own_part(problem.model, ended)}
        return Update(kept, sent, model=self.personal(shared, ended, problem))

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Add differences to the model; take the mean, where it was not known."""
        moved = plus(_model(shared), aggregate)
        mean = {MEAN: shared[MEAN], KNOWN: shared[KNOWN]}
        if not shared[KNOWN] and aggregate[KNOWN] > 0:
            mean = {MEAN: aggregate[MEAN] / aggregate[KNOWN], KNOWN: torch.ones_like(shared[KNOWN])}
        return {**moved, **averaged(shared, aggregate), **mean}, server

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Give the shared model, or what a client has made of it, with the client's shift in its head."""
        return super().personal({}, _shifted({**shared, **state}), problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau steps on model and shift, as in a round."""
        return self._steps(shared, state, problem)[0]

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Fit shift and own parts to the shared model, in as many steps as a round has, or as many as are said."""
        ended, _ = self._steps(shared, state, problem, only=list(state), duration=steps)
        return {name: ended[name] for name in state}

    def _steps(
        self,
        shared: Weights,
        state: Weights,
        problem: Problem,
        *,
        only: list[str] | None = None,
        duration: int | None = None,
    ) -> tuple[Weights, Tensor]:
        """Take a round's steps; give model and shift, and the running mean of the features."""
        weights, known = {**_model(shared), **state}, bool(shared[KNOWN])
        masks, each = problem.masks(), problem.weights
        moving = only or [name for name in weights if known or name != SHIFT]
        goal, share = shared[MEAN], self.mean_share
        running, sliced = torch.zeros_like(goal), False
        strength = self.kappa * share / len(goal) if known else 0.0

        def mean_of(features: Tensor, places: Tensor) -> Tensor:
            return average(features.to(goal), each if each is None else each[places])

        def note(features: Tensor, places: Tensor) -> None:
            nonlocal running
            running = torch.lerp(running, mean_of(features.detach(), places), share)

        def pull(features: Tensor, places: Tensor) -> Tensor:
            """Give a term with the gradient of kappa/(2M) |m_i - m|^2, of a batch or a slice of it."""
            if not sliced:
                note(features, places)
            return mean_of(features, places) @ (strength * (running - goal))

        def gradient(weights: Weights, batch: Tensor | None) -> Weights:
            nonlocal sliced
            model, count = _shifted(weights), problem.samples if batch is None else len(batch)
            sliced = masks is None and problem.slice is not None and problem.slice < count
            if sliced:  # the pull needs the mean of them all: one more pass
                note(problem.features(model, batch), torch.arange(count) if batch is None else batch)
            return _unshifted(weights, problem.gradient(model, batch, on_features=pull, masks=masks))

        rate = self.rate_of(
            problem,
            weights,
            moving,
            on_features=lambda features, places: (
                strength / 2 * (mean_of(features, places) - goal).square().sum()
            ),
            model_at=_shifted,
        )
        steps = self.steps_of(problem, self.duration if duration is None else duration)
        batches = problem.batches(self.batch_size, steps)
        ended = take_steps(gradient, weights, moving, batches, Rule(rate, self.momentum, self.weight_decay))
        return ended, running


def _model(weights: Weights) -> Weights:
    return {name: w for name, w in weights.items() if name not in (SHIFT, MEAN, KNOWN)}


def _shifted(weights: Weights) -> Weights:
    """Give the model that has the shift in its head's bias: W (phi + b) + c = W phi + (c + W b)."""
    head = weights[HEAD]
    bias = head[:, -1] + head[:, :-1] @ weights[SHIFT]  # (K,)
    return {**_model(weights), HEAD: torch.cat([head[:, :-1], bias[:, None]], dim=1)}


def _unshifted(weights: Weights, gradient: Weights) -> Weights:
    """Turn the gradient in the model that has the shift in its head's bias into that in head and shift."""
    slope = gradient[HEAD][:, -1]  # in the bias, (K,)
    rows = gradient[HEAD][:, :-1] + torch.outer(slope, weights[SHIFT])
    at_head = torch.cat([rows, slope[:, None]], dim=1)
    return {**gradient, HEAD: at_head, SHIFT: weights[HEAD][:, :-1].T @ slope}
