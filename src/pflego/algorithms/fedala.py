"""FedALA (Zhang et al., 2023): FedAvg whose clients start from a mixture of their own last model and the shared one.

    A_i in [0, 1], a number for every weight of the top p layers; o_i, what client i's last steps made of these layers
    m_i = o_i + (w_t - o_i) * A_i in the top p layers, and w_t below them

Round t, client i:

    epochs      A_i <- clip(A_i - eta grad l_i(m_i) * (w_t - o_i), 0, 1)    on a share s of its samples, drawn anew
    w_i <- m_i
    tau times   w_i <- w_i - beta grad l_i(w_i)
    sent        w_i - w_t;  A_i and o_i = w_i are kept
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i

m_i is what client i uses. A_i = 1, the shared model, at first; the first time it is learned until the mean losses of
ten epochs differ by less than 0.1 (their standard deviation), afterwards for one epoch. Its authors have p = 1,
eta = 1, s = 0.8 and batches of 10, the defaults, and the same batches for the steps on w_i; they look at the loss of
an epoch's last batch. With p = 1, the head, one forward pass serves all steps on A_i. p is `layers`, eta `mixing_lr`,
s `mixing_share`.

Neither personal parts, which stay as they are until the steps on w_i, nor running statistics of batch norm, which are
w_t's in m_i and averaged, are mixed. A_i is learned in evaluation mode, w_i in training mode.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.statistics import apart
from pflego.declaration import Limits, Positive, Whole
from pflego.exchange.round import Round, Update
from pflego.learning.heads import is_head
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, of_prefix, with_prefix

Slope: TypeAlias = Callable[[Weights, Tensor | None], tuple[float, Weights]]  # loss and gradient, on a batch

_OLD, _MIXING = "old/", "mixing/"  # before a weight's name: its entry of o_i, and of A_i
_EPOCHS, _SPREAD = 10, 0.1  # A_i has converged when so many losses have a standard deviation below this
_MOST = 100  # epochs, where it does not


@method
class FedALA(FedAvg):
    """A shared model, and for every client a mixture of it with what the client last made of its top layers.

    Parameters
    ----------
    layers
        p, how many layers are mixed, from the top: 1 is the head. A layer is a module that has weights of its own.
    mixing_lr
        eta, the rate of the steps on A_i.
    mixing_share
        s, the share of a client's samples that they look at.
    mixing_batch
        Samples per step on A_i.
    """

    abilities = frozenset({"personal parts", "training mode"})

    layers: Whole = 1
    mixing_lr: Positive = 1.0
    mixing_share: Annotated[float, Limits(above=0, most=1)] = 0.8
    mixing_batch: Whole = 10

    @property
    def family(self) -> Family:
        """A model of its own, mixed with the shared one."""
        return "mixed"

    @property
    def uses_shared_model(self) -> bool:
        """Everybody uses a mixture of its own."""
        return False

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """o_i = w_0, A_i = 1, and what is personal."""
        first = self.init_shared(problem.model, problem.outputs, seed)
        old = {name: first[name] for name in self._top(problem.model, first)}
        mixing = {name: torch.ones_like(w) for name, w in old.items()}
        return {**_kept(old, mixing), **super().init_state(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Learn how to mix, mix, take tau steps; send how far they led from the shared model."""
        received = self.whole(shared, state, problem)
        mixing = self._learn(received, state, problem)
        weights = self.descend(problem, _mixed(received, of_prefix(_OLD, state), mixing))
        old = _kept({name: weights[name] for name in mixing}, mixing)
        way = minus({name: weights[name] for name in shared}, shared)
        kept = {**old, **self.own_part(problem.model, weights)}
        return Update(kept, way, model=self.personal(shared, weights, problem))

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """m_i, or what a client has made of it, fine-tuned if asked."""
        mixing = of_prefix(_MIXING, state)
        received = self.whole(shared, state, problem)
        own = _mixed(received, of_prefix(_OLD, state), mixing) if mixing else state
        return super().personal(shared, own, problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Learn how to mix, mix, and take tau steps, as in a round."""
        received = self.whole(shared, state, problem)
        mixing = self._learn(received, state, problem)
        return self.descend(problem, _mixed(received, of_prefix(_OLD, state), mixing))

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Fit the top layers to the shared ones below them in tau steps, and use them as they are: A_i = 0."""
        top, parts = list(of_prefix(_OLD, state)), self.own_part(problem.model, state)
        start = {**shared, **parts}
        fitted = self.descend(problem, start, duration=steps, only=[*top, *parts])
        own = {name: fitted[name] for name in top}
        mixing = {name: torch.zeros_like(w) for name, w in own.items()}
        return {**_kept(own, mixing), **{name: fitted[name] for name in parts}}

    def _top(self, model: Model, weights: Weights) -> list[str]:
        """Name those of some weights that are of the top p layers: the head, and the backbone's last modules."""
        modules = list(dict.fromkeys(_module(name) for name in model.names))
        mixed = modules[max(0, len(modules) - self.layers + 1) :]
        return [name for name in apart(weights)[0] if is_head(name) or _module(name) in mixed]

    def _learn(self, received: Weights, state: Weights, problem: Problem) -> Weights:
        """Give A_i after its steps, with the client's own parts in the model that was received."""
        old, mixing = of_prefix(_OLD, state), of_prefix(_MIXING, state)
        away = {name: received[name] - w for name, w in old.items()}
        if not any(bool(difference.any()) for difference in away.values()):
            return mixing
        first = all(bool((share == 1).all()) for share in mixing.values())
        some = problem.some(max(1, round(self.mixing_share * problem.samples)), "samples of the mixture")
        slope = _slope(some, received, list(old))
        each = ceil(some.samples / self.mixing_batch)
        batches = some.batches(self.mixing_batch, each * _MOST, "batches of the mixture")
        losses: list[float] = []
        while len(losses) < (_MOST if first else 1):
            epoch: list[float] = []
            for _ in range(each):
                loss, gradient = slope(_mixed(received, old, mixing), next(batches))
                epoch.append(loss)
                mixing = {
                    name: (share - self.mixing_lr * gradient[name] * away[name]).clamp(0, 1)
                    for name, share in mixing.items()
                }
            losses.append(float(np.mean(epoch)))
            if len(losses) > _EPOCHS and np.std(losses[-_EPOCHS:]) < _SPREAD:
                break
        return mixing


def _slope(problem: Problem, received: Weights, top: list[str]) -> Slope:
    """Give the loss and its gradient in the top layers as a function of the model and a batch.

    Where they are the head alone, the features of one forward pass serve every call.
    """
    features = problem.features(received) if all(is_head(name) for name in top) else None

    def on_features(weights: Weights, batch: Tensor | None) -> tuple[float, Weights]:
        assert features is not None
        phi, targets = features, problem.targets
        if batch is not None:
            phi, targets = phi[batch], targets[batch]
        found = problem.head.gradient(weights, phi, targets, problem.task)
        return float(found.loss), found.head

    def through_backbone(weights: Weights, batch: Tensor | None) -> tuple[float, Weights]:
        here = problem if batch is None else problem.part(batch)
        forward = here.forward(weights)
        found = here.head_gradient(weights, forward.features)
        return float(found.loss), {**forward.backward(found.features), **found.head}

    return through_backbone if features is None else on_features


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _kept(old: Weights, mixing: Weights) -> Weights:
    return {**with_prefix(_OLD, old), **with_prefix(_MIXING, mixing)}


def _mixed(received: Weights, old: Weights, mixing: Weights) -> Weights:
    """m_i."""
    top = {name: torch.lerp(old[name], received[name], share) for name, share in mixing.items()}
    return {**received, **top}
