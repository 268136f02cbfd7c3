"""Per-FedAvg (Fallah et al., 2020): FedAvg for a model that is good after one step of a client. Round t, client i:

    w_i <- w_t
    tau times   u = w_i - a grad l_i(w_i; B),  d = grad l_i(u; B')
                h = (grad l_i(w_i + delta d; B'') - grad l_i(w_i - delta d; B'')) / (2 delta)
                w_i <- w_i - beta (d - a h)
    sent        w_i - w_t
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i
    used        w - a grad l_i(w), on all samples

This descends l_i(w - a grad l_i(w)), whose gradient is (I - a H) d with the Hessian H of l_i: h is H d without it
(order="hessian-free"); order="first" leaves it out. B, B' and B'' are disjoint and drawn anew for every step: of
`batch_size` samples each, or all of a client's in equal parts; an epoch has as many steps as it takes to draw all
samples once. a is `inner_lr`, beta `client_lr`. The authors' values are a = 0.01, beta = 0.001, tau from 4 to 10.

Where a backbone has a training mode, all of these gradients are taken in it: the two of h with the same masks of
dropout, for h is their difference. Running statistics of batch norm move once per step, by the gradient at w_i, and are
averaged. Personal parts take the steps, and the one before use, with everything else, and stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pflego.algorithms.base import Family
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.algorithms.stepping import Rule, take_steps
from pflego.declaration import AutoRate, Positive
from pflego.learning.problem import Problem
from pflego.weights import Weights, step, weighted_sum


@method
class PerFedAvg(FedAvg):
    """One model for everybody, trained to be good after one step of a client.

    Parameters
    ----------
    batch_size
        Samples in each of the two batches of a step, or three where it is Hessian-free; all of a client's in equal
        parts, if not given or where there are fewer.
    inner_lr
        a, the rate of the one step that a client takes before it uses its model. "auto": 1/L, as for client_lr.
    order
        "hessian-free": with the curvature of that step, from two gradients on a third batch. "first": without.
    delta
        How far apart the two gradients are taken, in lengths of the gradient itself.
    """

    abilities = frozenset({"personal parts", "training mode"})

    inner_lr: AutoRate = "auto"
    order: Literal["first", "hessian-free"] = "hessian-free"
    delta: Positive = 1e-3
    fine_tune: ClassVar[int] = 1  # type: ignore[misc]  # no field: it is trained for one step
    fine_tune_part: ClassVar[str] = "model"  # type: ignore[misc]

    @property
    def family(self) -> Family:
        """One model, and a client's step from it."""
        return "fine-tuned"

    def steps_of(self, problem: Problem, duration: int) -> int:
        """Count the steps of so many epochs, where those are given: each draws several batches."""
        if self.epochs is None:
            return duration
        drawn = problem.samples if self.batch_size is None else self._parts * self.batch_size
        return duration * ceil(problem.samples / drawn)

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Take the one step, on all samples, from the shared model or from what a client has made of it."""
        weights = problem.model.with_own_statistics({**shared, **state})
        rate = self._inner_rate(problem, weights)
        gradient = problem.gradient(weights, masks=problem.at().masks())  # which moves the statistics
        return step(weights, gradient, rate)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau steps on a copy of the model, as in a round."""
        start = self.whole(shared, state, problem)
        inner = self._inner_rate(problem, start)
        same = self.client_lr == self.inner_lr  # what was measured need not be measured again
        outer = self.rate_of(problem, start, list(start), rate=inner if same else None)
        masks = problem.masks()

        def gradient(weights: Weights, batch: Tensor | None) -> Weights:
            assert batch is not None
            return self._meta_gradient(problem, weights, batch.tensor_split(self._parts), inner, masks)

        batches = self._batches(problem, self.steps_of(problem, self.duration))
        rule = Rule(outer, self.momentum, self.weight_decay)
        return take_steps(gradient, start, list(start), batches, rule)

    @property
    def _parts(self) -> int:
        return 2 if self.order == "first" else 3

    def _inner_rate(self, problem: Problem, weights: Weights) -> float:
        """Give a, which does not decay: it is the rate that the model will be used with."""
        return self.rate_of(problem.at(), weights, list(weights), rate=self.inner_lr)

    def _batches(self, problem: Problem, steps: int) -> Iterator[Tensor]:
        """Draw the samples of all batches of a step; who has fewer samples than batches uses them in each."""
        generator, samples = problem.generator("batches"), problem.samples
        for _ in range(steps):
            if samples < self._parts:
                yield torch.arange(samples).repeat(self._parts)
            else:
                drawn = torch.randperm(samples, generator=generator)
                yield drawn if self.batch_size is None else drawn[: self._parts * self.batch_size]

    def _meta_gradient(
        self,
        problem: Problem,
        weights: Weights,
        batches: tuple[Tensor, ...],
        inner: float,
        masks: torch.Generator | None,
    ) -> Weights:
        """(I - a H) d, or d."""
        first, second, *third = batches
        slope = problem.gradient(weights, first, masks=masks)

        def away(direction: Weights, rate: float, batch: Tensor) -> Weights:
            there = problem.model.with_own_statistics(step(weights, direction, rate))
            return problem.gradient(there, batch, masks=masks)

        direction = away(slope, inner, second)
        if not third:
            return direction
        drawn = None if masks is None else masks.get_state()
        ahead = away(direction, -self.delta, *third)
        if masks is not None and drawn is not None:
            masks.set_state(drawn)
        behind = away(direction, self.delta, *third)
        bend = inner / (2 * self.delta)
        return weighted_sum([(1.0, direction), (-bend, ahead), (bend, behind)])
