"""Heads that are kept from round to round, and take tau - 1 steps in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pflego.algorithms.pflego.common_head import CommonHead, OwnHead
from pflego.algorithms.pflego.rates import Rates
from pflego.algorithms.pflego.safeguard import HeadWork, guarded_steps
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

    def fit(self, shared: Weights, state: Weights, problem: Problem, features: Tensor) -> HeadWork:
        """Take tau - 1 steps."""
        head = self.parts.whole(shared, state, problem)
        descent = self.rates.descent(problem, head, features, self.parts.anchor(shared, problem))
        return guarded_steps(problem, head, features, self.steps, descent)

    def kept(self, shared: Weights, head: Weights, problem: Problem) -> Weights:
        """Return the part of a head that the client keeps."""
        return self.parts.own(shared, head, problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Take tau - 1 steps against the present theta."""
        work = self.fit(shared, state, problem, problem.forward(shared).features)
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
