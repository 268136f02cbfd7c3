"""Heads that are solved for in every round, instead of stepped: head_optimizer="solve".

    W_i(theta)  =  argmin_W l_i(W, theta) + decay/2 |W|^2                |W - W_0|^2 beside a common head
    P(theta)    =  sum_i alpha_i min_W (l_i(W, theta) + decay/2 |W|^2)

By the envelope theorem grad_theta l_i at W_i(theta) is the gradient of client i's part of P: the server's step is an
SGD step on P, a function of theta (and W_0) alone. There is no client rate and no tau, and a client keeps nothing: its
head is a function of theta and its data. The curvature of P is nowhere above that of the loss in theta (and W_0), heads
held where they are: P's Hessian is that less a positive semidefinite term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pflego.algorithms.pflego.common_head import CommonHead, OwnHead
from pflego.algorithms.pflego.safeguard import HeadWork
from pflego.learning.head_group import HeadGroup
from pflego.learning.heads import Descent
from pflego.learning.heads.solve import solve_head
from pflego.learning.problem import Problem
from pflego.weights import Weights


@dataclass(frozen=True)
class SolvedHeads:
    """How a client's head is fitted to features: exactly."""

    moves_own: ClassVar[bool] = False  # at a minimum there is no step to take

    parts: OwnHead | CommonHead
    decay: float

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """Return nothing: a client keeps no state."""
        return {}

    def whole(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Solve for the head that belongs to the present theta, unless several passes have made one already."""
        if state:
            return self.parts.whole(shared, state, problem)
        [work] = self.fit(shared, [state], HeadGroup([problem], problem.forward(shared).features))
        return work.head

    def fit(self, shared: Weights, states: Sequence[Weights], group: HeadGroup) -> list[HeadWork]:
        """Solve for the heads that belong to features."""
        anchors = [self.parts.anchor(shared, problem) for problem in group.problems]
        return [
            HeadWork(
                solve_head(problem, features, self.decay, anchor),
                Descent(rate=0.0, decay=self.decay, anchor=anchor, limit=0.0),
            )
            for problem, features, anchor in zip(group.problems, group.parts, anchors, strict=True)
        ]

    def kept(self, shared: Weights, head: Weights, problem: Problem) -> Weights:
        """Return nothing: a client keeps no state."""
        return {}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return nothing: every head is adapted."""
        return {}

    def welcome(self, shared: Weights, state: Weights, problem: Problem, steps: int | None) -> Weights:
        """Return nothing: a newcomer's head is solved for like any other."""
        return {}
