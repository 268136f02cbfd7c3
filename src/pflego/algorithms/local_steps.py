"""Full-batch gradient descent on a client's whole model: what PFLEGO's rivals do tau times a round."""

from __future__ import annotations

from collections.abc import Sequence

from pflego.learning.gram import Span
from pflego.learning.problem import Problem
from pflego.weights import Weights


def descend(
    problem: Problem,
    weights: Weights,
    *,
    steps: int,
    rate: float,
    momentum: float = 0.0,
    only: Sequence[str] | None = None,
    anchor: Weights | None = None,
    mu: float = 0.0,
) -> Weights:
    """Take gradient steps on l_i(w) + mu/2 |w - anchor|^2.

    v <- momentum v + gradient,  w <- w - rate v, for the weights named in `only` (all of them, if it is None). The
    others do not move. A step costs one forward and one backward pass.
    """
    moving = list(weights) if only is None else list(only)
    if span := Span.of(problem, weights, steps=steps, moving=moving, anchor=anchor):
        start, goal = span.enter(weights), None if anchor is None else span.enter(anchor)
        moving += start.keys() - weights.keys()
        return span.leave(_descend(span, start, steps, rate, momentum, moving, goal, mu))
    return _descend(problem, weights, steps, rate, momentum, moving, anchor, mu)


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
