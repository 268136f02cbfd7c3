"""Mini-batches of `batch_size` samples: many steps on theta for the price of one pass.

With (theta, W_0)_0 as received, for every batch B of a pass over the client's samples, or `sample` of them, in a random
order,

    Phi_B  =  features of the client's own theta, kept
    (theta, W_0, head)  <-  (theta, W_0, head) - eta grad l_B,    the joint step, taken at home

and after `passes` such passes

    tau - 1 steps on the head, from the last pass's kept features, beside W_0 as received
    send (theta, W_0)_0 - (theta, W_0),  the sum of the steps

so that a round costs one forward and one backward pass, as the paper's does, whatever tau is. The server's optimiser
takes the weighted sum of these differences as its gradient. A client keeps its head alone: theta is the server's
again when it is judged, and when it comes back.

It is no exact step: batches are drawn, and where clients differ they drift apart, as in FedAvg. eta is `local_lr`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pflego.algorithms.pflego.rates import JOINT_SAMPLES, moving
from pflego.algorithms.stepping import Rule, take_steps
from pflego.exchange.metrics import total
from pflego.exchange.round import Update
from pflego.learning.head_group import HeadGroup
from pflego.learning.problem import Problem
from pflego.weights import Weights, minus, of_prefix, weighted_sum, with_prefix

if TYPE_CHECKING:
    from pflego.algorithms.pflego.algorithm import PFLEGO

_OWN = "own/"  # before the names of a client's own head, whose common part has the same


def batches_in_turn(
    algorithm: PFLEGO,
    shared: Weights,
    states: Sequence[Weights],
    problems: Sequence[Problem],
    weights: Sequence[float],
    size: int,
) -> tuple[list[Update], Weights]:
    """Let clients go through their batches one after the other, then fit all heads; sum what they send by weights."""
    heads, rates, start = algorithm.heads, algorithm.rates, moving(shared)
    problems = [problem.some(algorithm.sample, JOINT_SAMPLES) for problem in problems]
    visits = [
        _visit(algorithm, start, own, problem, size) for own, problem in zip(states, problems, strict=True)
    ]
    features = torch.cat([visit.features for visit in visits])
    work = heads.fit(start, [visit.own for visit in visits], HeadGroup(problems, features))
    updates = [
        Update(
            heads.kept(start, w.head, problem),
            metrics={
                "fallbacks": total(w.fallbacks),
                **rates.metrics(w.descent, 0.0, steps=algorithm.steps - 1),
            },
        )
        for problem, w in zip(problems, work, strict=True)
    ]
    ends = zip(weights, visits, strict=True)
    return updates, weighted_sum((weight, minus(start, visit.here)) for weight, visit in ends)


@dataclass(frozen=True)
class _Visit:
    here: Weights  # theta and W_0, where the steps ended
    own: Weights  # the client's own head, or part of one
    features: Tensor  # (N_i, M), each as its batch of the last pass saw it


def _visit(algorithm: PFLEGO, start: Weights, own: Weights, problem: Problem, size: int) -> _Visit:
    """Take a joint step for every batch."""
    parts, decay, model = algorithm.parts, algorithm.head_decay, problem.model
    features = torch.empty(problem.samples, model.features, dtype=model.dtype, device=problem.device)

    def slope(at: Weights, batch: Tensor | None) -> Weights:
        own = of_prefix(_OWN, at)
        found = problem.gradient({**at, **parts.whole(at, own, problem)}, batch, seen=features)
        head = {name: found.pop(name) for name in own}
        found |= parts.contribution(at, [head], [problem], [1.0])
        return found | {_OWN + name: head[name].add(w, alpha=decay) for name, w in own.items()}

    start = start | with_prefix(_OWN, own)
    steps = algorithm.passes * ceil(problem.samples / size)
    rule = Rule(algorithm.rates.batch_rate())
    ended = take_steps(slope, start, list(start), problem.batches(size, steps), rule)
    here = {name: ended[name] for name in start if not name.startswith(_OWN)}
    return _Visit(here, of_prefix(_OWN, ended), features)
