"""Full-batch gradient descent on a client's whole model: what PFLEGO's rivals do tau times a round.

    v <- momentum v + grad l_i(w) + mu (w - anchor),    w <- w - beta v

beta="auto" is 1/(L + mu) for every client and round. L is the larger of two constants: the head's L_i, which holds
wherever the head goes, and the largest curvature of l_i in all the weights that move, head and backbone together, where
the steps begin. The second alone would not do: it vanishes where a client's samples are fitted, and there would be no
end to the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pflego.algorithms.base import Algorithm
from pflego.declaration import AutoRate, Whole
from pflego.learning.gram import Span
from pflego.learning.heads import Descent, Head, HeadInit, LinearHead, is_head
from pflego.learning.problem import Problem
from pflego.learning.theory import best_rate
from pflego.weights import Weights

_ITERATIONS = 5  # of the power method: each costs a pass both ways


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Algorithm):
    """A method whose clients take gradient steps through the backbone.

    Parameters
    ----------
    steps
        tau, full gradient steps per round.
    client_lr
        beta, the rate of the local steps. "auto": 1/L for every client and round, from the smoothness of head and
        backbone where its steps begin, for five passes each way and a forward one more.
    head_init
        How heads start: zeros, uniform, centred, layer or orthonormal; or a function, as in PFLEGO. If not given,
        centred where heads are linear: a head that is trained together with the backbone must not be small.
    """

    steps: Whole = 50
    client_lr: AutoRate = "auto"
    head_init: HeadInit | None = None

    def start_of(self, head: Head) -> HeadInit:
        """Say how a head starts: as given, or as is usual for its kind."""
        if self.head_init is not None:
            return self.head_init
        return "centred" if isinstance(head, LinearHead) else "zeros"

    def new_head(self, problem: Problem, seed: int) -> Weights:
        """Draw a client's own first head."""
        return problem.new_head(self.start_of(problem.head), seed)

    def descend(
        self,
        problem: Problem,
        weights: Weights,
        *,
        steps: int | None = None,
        rate: float | Literal["auto"] | None = None,
        momentum: float = 0.0,
        only: Sequence[str] | None = None,
        anchor: Weights | None = None,
        mu: float = 0.0,
    ) -> Weights:
        """Take tau steps, or as many as are said, on l_i(w) + mu/2 |w - anchor|^2.

        The weights named in `only` move (all of them, if it is None). A step costs one forward and one backward pass.
        """
        steps = self.steps if steps is None else steps
        rate = self.client_lr if rate is None else rate
        if not steps:
            return weights
        moving = list(weights) if only is None else list(only)
        if rate == "auto":
            rate = best_rate(_smoothness(problem, weights, moving) + mu)
        return descend(
            problem, weights, moving, steps=steps, rate=rate, momentum=momentum, anchor=anchor, mu=mu
        )

    def head_steps(self, problem: Problem, weights: Weights, steps: int, *, momentum: float = 0.0) -> Weights:
        """Take steps on the head alone, by the features of one forward pass; give the head."""
        head = {name: w for name, w in weights.items() if is_head(name)}
        if not steps:
            return head
        features = problem.forward(weights).features
        rate = self.client_lr
        if rate == "auto":
            rate = best_rate(problem.head_smoothness(head, features))
        descent = Descent(rate, "momentum" if momentum else "gd", momentum)
        return problem.head_steps(head, features, steps, descent)


def descend(
    problem: Problem,
    weights: Weights,
    moving: Sequence[str],
    *,
    steps: int,
    rate: float,
    momentum: float = 0.0,
    anchor: Weights | None = None,
    mu: float = 0.0,
) -> Weights:
    """Take gradient steps in the weights that move; the others stay."""
    if span := Span.of(problem, weights, steps=steps, moving=moving, anchor=anchor):
        start, goal = span.enter(weights), None if anchor is None else span.enter(anchor)
        moving = [*moving, *(start.keys() - weights.keys())]
        return span.leave(_descend(span, start, steps, rate, momentum, moving, goal, mu))
    return _descend(problem, weights, steps, rate, momentum, moving, anchor, mu)


def _smoothness(problem: Problem, weights: Weights, moving: Sequence[str]) -> float:
    """L of the loss in the weights that move: the head's, or the curvature of all of them here if that is more."""
    constant = problem.head_smoothness(weights, problem.forward(weights).features)
    # in one order, however the weights were kept: the power method starts at random
    start = {name: weights[name] for name in sorted(moving)}
    with suppress(RuntimeError):  # a backbone that cannot be differentiated twice trains all the same
        here = problem.smoothness(start, lambda moved: {**weights, **moved}, _ITERATIONS)
        constant = max(constant, here)
    return constant


def _descend(
    problem: Problem | Span,
    weights: Weights,
    steps: int,
    rate: float,
    momentum: float,
    moving: Sequence[str],
    anchor: Weights | None,
    mu: float,
) -> Weights:
    velocity: Weights = {}
    for _ in range(steps):
        gradient = problem.gradient(weights)
        for name in moving:
            slope = gradient[name]
            if anchor is not None and mu:
                slope = slope + mu * (weights[name] - anchor[name])
            velocity[name] = slope + momentum * velocity[name] if momentum and name in velocity else slope
        weights = {n: w.sub(velocity[n], alpha=rate) if n in velocity else w for n, w in weights.items()}
    return weights
