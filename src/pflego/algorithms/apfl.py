"""APFL (Deng et al., 2020): FedAvg for a global model, and a personal one that is mixed with it. Round t, client i:

    w_i <- w_t
    tau times   m   =  a_i v_i + (1 - a_i) w_i
                w_i <- w_i - beta grad l_i(w_i)
                v_i <- v_i - beta a_i grad l_i(m)
    with the first of them, a_i <- clip(a_i - beta <grad l_i(m), v_i - w_i>, 0, 1)
    sent        w_i - w_t;  v_i and a_i are kept
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i

All three start from where w_i, v_i and a_i were before the step. a_i v_i + (1 - a_i) w is what client i uses: v_i
learns what is missing in the mixture. Its authors learn a_i from 0.5, once a round, or hold it at 0.25, 0.5 or 0.75
(learn_mixing=False), with client_lr=0.1 and lr_decay=0.99; what their program adds to the gradient of a_i, 0.02 a_i,
is not in their paper and not here. At a_i = 0 this is FedAvg, at 1 a client uses what it has learned alone.

Parts that are personal are v_i's alone, and not mixed: they go along grad l_i(m) in full, and the steps of w_i see them
as they are. Running statistics of batch norm are not mixed either: w_i's are those of its own passes, and averaged;
v_i's are those of the mixture's passes, and what it uses.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.stepping import Rule, take_steps
from pflego.declaration import Limits
from pflego.exchange.round import Round, Update
from pflego.learning.modes import is_statistic
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, of_prefix, with_prefix

_OWN, _MIXING = "own/", "mixing"  # before the names of v_i's weights; the name of a_i


@method
class APFL(FedAvg):
    """A global model, and for every client a personal one that it is mixed with.

    Parameters
    ----------
    mixing
        a_i of everybody at first: the share of a client's own model in the mixture that it uses.
    learn_mixing
        Whether a client moves its a_i, by one gradient step a round.
    """

    abilities = frozenset({"personal parts", "training mode"})

    mixing: Annotated[float, Limits(least=0, most=1)] = 0.5
    learn_mixing: bool = True

    @property
    def family(self) -> Family:
        """A model of its own, mixed with the shared one."""
        return "mixed"

    @property
    def uses_shared_model(self) -> bool:
        """Everybody uses a mixture of its own."""
        return False

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """v_i = w_0, with what is personal, and a_i."""
        first = self.init_shared(problem.model, problem.outputs, seed)
        return _state(
            {**first, **super().init_state(problem, seed)},
            torch.tensor(self.mixing, dtype=problem.model.weight_dtype),
        )

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on both models, the first on a_i too; keep the personal one, send how far the global one went."""
        moved, own, mixing = self._steps(shared, state, problem)
        kept = _state(own, mixing)
        return Update(kept, minus(moved, shared), model=self.personal(moved, kept, problem))

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """a_i v_i + (1 - a_i) w, or what a client has made of it, fine-tuned if asked."""
        mixed = state
        if _MIXING in state:
            mixed = _mixed(shared, of_prefix(_OWN, state), state[_MIXING])
        return super().personal(shared, mixed, problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Make the mixture that a client has at the end of a round."""
        return _mixed(*self._steps(shared, state, problem))

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Start v_i at w, and take tau steps on it in the mixture with w as it is."""
        mixing, masks = state[_MIXING], problem.masks("mixture")
        start = {**of_prefix(_OWN, state), **shared}

        def gradient(own: Weights, batch: Tensor | None) -> Weights:
            at_mixture = problem.gradient(_mixed(shared, own, mixing), batch, masks=masks)
            return _in_own(shared, at_mixture, mixing)

        batches = problem.batches(
            self.batch_size, self.steps_of(problem, self.duration if steps is None else steps)
        )
        rule = Rule(self.rate_of(problem, start, list(start)), self.momentum, self.weight_decay)
        return _state(take_steps(gradient, start, list(start), batches, rule), mixing)

    def _steps(self, shared: Weights, state: Weights, problem: Problem) -> tuple[Weights, Weights, Tensor]:
        """Take the steps of a round; give w_i, v_i and a_i."""
        start = {**of_prefix(_OWN, state), **shared}  # w, and the parts that are v_i's alone
        rate = self.rate_of(problem, start, list(start))
        mixing, learns = state[_MIXING], self.learn_mixing
        masks, masks_of_mixture = problem.masks(), problem.masks("mixture")

        def gradient(both: Weights, batch: Tensor | None) -> Weights:
            nonlocal mixing, learns
            model, personal = {name: both[name] for name in shared}, of_prefix(_OWN, both)
            at_mixture = problem.gradient(_mixed(model, personal, mixing), batch, masks=masks_of_mixture)
            own = _in_own(shared, at_mixture, mixing)
            if learns:
                slope = sum(
                    (at_mixture[name] * (personal[name] - w)).sum()
                    for name, w in model.items()
                    if name in at_mixture
                )
                mixing, learns = (mixing - rate * slope).clamp(0, 1), False
            parts = {name: w.clone() for name, w in personal.items() if name not in shared}
            at_model = problem.gradient({**parts, **model}, batch, masks=masks)
            return {**at_model, **with_prefix(_OWN, own)}

        both = {**shared, **{name: w for name, w in state.items() if name != _MIXING}}
        batches = problem.batches(self.batch_size, self.steps_of(problem, self.duration))
        rule = Rule(rate, self.momentum, self.weight_decay)
        both = take_steps(gradient, both, list(both), batches, rule)
        return {name: both[name] for name in shared}, of_prefix(_OWN, both), mixing


def _state(own: Weights, mixing: Tensor) -> Weights:
    return {**with_prefix(_OWN, own), _MIXING: mixing}


def _mixed(shared: Weights, own: Weights, mixing: Tensor) -> Weights:
    """a_i v_i + (1 - a_i) w, with the running statistics of v_i, and the parts that are its alone."""
    return {
        name: v if name not in shared or is_statistic(name) else torch.lerp(shared[name], v, mixing)
        for name, v in own.items()
    }


def _in_own(shared: Weights, at_mixture: Weights, mixing: Tensor) -> Weights:
    """Turn the gradient at the mixture into that in v_i."""
    return {name: mixing * g if name in shared else g for name, g in at_mixture.items()}
