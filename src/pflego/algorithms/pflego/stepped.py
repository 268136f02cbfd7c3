"""Heads that are kept from round to round, and take tau - 1 steps in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pflego.algorithms.pflego.common_head import CommonHead, OwnHead
from pflego.algorithms.pflego.rates import Rates
from pflego.algorithms.pflego.safeguard import HeadWork, guarded_steps
from pflego.learning.head_group import HeadGroup
from pflego.learning.heads.fit import fit_head
from pflego.learning.problem import Problem
from pflego.weights import Weights


@dataclass(frozen=True)
class SteppedHeads:
    """How a client's head is fitted to features: by steps from where it is."""

    moves_own: ClassVar[bool] = True  # the joint step goes on from where they end

    parts: OwnHead | CommonHead
    rates: Rates
    steps: int  # tau - 1

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i, or V_i = 0 beside a common head."""
        return self.parts.init_state(problem, seed)

    def whole(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return the head that a client's outputs come from."""
        return self.parts.whole(shared, state, problem)

    def fit(self, shared: Weights, states: Sequence[Weights], group: HeadGroup) -> list[HeadWork]:
        """Take tau - 1 steps on every head."""
        whole, problems = self.parts.whole, group.problems
        heads = [whole(shared, state, problem) for state, problem in zip(states, problems, strict=True)]
        descents = [
            self.rates.descent(bound, self.parts.anchor(shared, problem))
            for bound, problem in zip(self.rates.bounds(group, heads), problems, strict=True)
        ]
        return guarded_steps(group, heads, self.steps, descents)

    def kept(self, shared: Weights, head: Weights, problem: Problem) -> Weights:
        """Return the part of a head that the client keeps."""
        return self.parts.own(shared, head, problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Take tau - 1 steps against the present theta."""
        [work] = self.fit(shared, [state], HeadGroup([problem], problem.forward(shared).features))
        return self.kept(shared, work.head, problem)

    def welcome(self, shared: Weights, state: Weights, problem: Problem, steps: int | None) -> Weights:
        """Fit a head to the present theta by steps of 1/L_i, held near W_0 beside a common head."""
        fitted = fit_head(
            problem,
            self.parts.whole(shared, state, problem),
            problem.forward(shared).features,
            steps=steps,
            decay=self.rates.decay,
            anchor=self.parts.anchor(shared, problem),
        )
        return self.kept(shared, fitted, problem)
