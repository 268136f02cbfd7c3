"""Several passes over a client's data in a round, k = `passes`: fewer rounds for more work.

With (theta, W_0)_0 as received,

    k times    Phi = features of the client's own theta_p
               tau - 1 steps on the head, from Phi
               (theta, W_0, head)_p+1  =  (theta, W_0, head)_p - eta grad l_i,  the joint step, taken at home
    send       (theta, W_0)_0 - (theta, W_0)_k,  the sum of the steps

The server's optimiser takes the weighted sum of these differences as its gradient: SGD at a rate of 1 adds the mean of
the clients' moves, Adam gives each weight a step of its own size. One pass is the paper's exact step, and is not made
here. More are none: where clients differ they drift apart, as in FedAvg.

eta is `local_lr`; "auto" is 1/L_i, with L_i the largest curvature of the client's loss in all that the step moves,
measured at the first pass: a few passes each way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from pflego.algorithms.pflego.rates import moving
from pflego.algorithms.pflego.safeguard import HeadWork
from pflego.exchange.metrics import total
from pflego.exchange.round import Update
from pflego.learning.head_group import HeadGroup
from pflego.learning.heads import is_head
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, plus, step, weighted_sum

if TYPE_CHECKING:
    from pflego.algorithms.pflego.algorithm import PFLEGO


def passes_in_turn(
    algorithm: PFLEGO,
    shared: Weights,
    states: Sequence[Weights],
    problems: Sequence[Problem],
    weights: Sequence[float],
) -> tuple[list[Update], Weights]:
    """Let clients make their passes one after the other; sum what they send by weights."""
    updates = [
        several_passes(algorithm, shared, state, problem)
        for state, problem in zip(states, problems, strict=True)
    ]
    contribution = weighted_sum((w, u.contribution) for w, u in zip(weights, updates, strict=True))
    return [replace(update, contribution={}) for update in updates], contribution


def adapt_in_passes(algorithm: PFLEGO, shared: Weights, state: Weights, problem: Problem) -> Weights:
    """Make a participant's k passes; give its own theta, and the head it ends with as a rest beside the shared W_0."""
    model = several_passes(algorithm, shared, state, problem).model or {}
    head = {name: tensor for name, tensor in model.items() if is_head(name)}
    body = {name: tensor for name, tensor in model.items() if not is_head(name)}
    return {**body, **algorithm.parts.own(shared, head, problem)}


def several_passes(algorithm: PFLEGO, shared: Weights, state: Weights, problem: Problem) -> Update:
    """Make k passes on a client."""
    heads, parts, rates = algorithm.heads, algorithm.parts, algorithm.rates
    here, rate, fallbacks = moving(shared), inf, 0
    for number in range(algorithm.passes):
        forward = problem.forward(here)
        [work] = heads.fit(here, [state], HeadGroup([problem], forward.features))
        own = parts.own(here, work.head, problem)
        if number == 0:
            rate = rates.local_rate(problem, heads, here, work.head)
        rate = rates.local_cap(rate, work.descent)
        at = problem.head_gradient(work.head, forward.features)
        slope = forward.backward(at.features) | parts.contribution(here, [at.head], [problem], [1.0])
        here = step(here, slope, rate)
        state = step(own, _own_slope(work, at.head), rate) if heads.moves_own else state
        fallbacks = max(fallbacks, work.fallbacks)
    uncapped = replace(work.descent, limit=inf)
    return Update(
        state,
        minus(moving(shared), here),
        metrics={
            "fallbacks": total(fallbacks),
            **rates.metrics(uncapped, rate, steps=algorithm.steps - 1),
        },
        model={**here, **heads.whole(here, state, problem)},
    )


def _own_slope(work: HeadWork, gradient: Weights) -> Weights:
    """Add the pull of a decay to a head's gradient."""
    return plus(gradient, work.descent.pull(work.head)) if work.descent.decay else gradient
