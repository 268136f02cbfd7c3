"""Gradient steps on named weights, once there is a gradient: plain ones, and those in the span of a client's samples.

v <- momentum v + g + decay w + mu (w - anchor) + slope,    w <- w - beta v
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from pflego.learning.gram import Span
from pflego.learning.modes import is_statistic
from pflego.learning.problem import FeatureTerm
from pflego.weights import Weights

Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]
Gradient: TypeAlias = Callable[[Weights, Tensor | None], Weights]  # of weights and a batch


@dataclass(frozen=True)
class Rule:
    """What becomes of a gradient: the terms that are added to it, and how far a step goes."""

    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    anchor: Weights | None = None
    mu: float = 0.0
    slope: Weights | None = None


def take_steps(
    gradient: Gradient, weights: Weights, moving: Sequence[str], batches: Iterable[Tensor | None], rule: Rule
) -> Weights:
    """Take a step for each batch in the weights that move; the others stay.

    Running statistics never move by a step: computing a gradient in training mode moves them, here in copies.
    """
    moving = [name for name in moving if not is_statistic(name)]
    copied = [*moving, *filter(is_statistic, weights)]
    weights = {**weights, **{name: weights[name].clone() for name in copied}}
    places = [weights[name] for name in moving]
    goals = rule.anchor if rule.anchor is not None and rule.mu else {}
    pulled = [place for place, name in enumerate(moving) if name in goals]
    anchors, held = [goals[moving[k]] for k in pulled], [places[k] for k in pulled]
    slope = rule.slope or {}
    sloped = [place for place, name in enumerate(moving) if name in slope]
    slopes = [slope[moving[k]] for k in sloped]
    velocity: Tensors = []
    for batch in batches:
        found = gradient(weights, batch)
        if not moving:  # all of it is frozen
            continue
        move: Tensors = [found[name] for name in moving]
        if rule.weight_decay:
            move = torch._foreach_add(move, places, alpha=rule.weight_decay)
        if anchors:
            move = _add_at(pulled, move, torch._foreach_sub(held, anchors), rule.mu)
        if slopes:
            move = _add_at(sloped, move, slopes)
        if rule.momentum:
            move = torch._foreach_add(move, velocity, alpha=rule.momentum) if velocity else move
            velocity = move
        torch._foreach_add_(places, move, alpha=-rule.rate)
    return weights


def steps_in(
    span: Span,
    weights: Weights,
    moving: Sequence[str],
    steps: int,
    rule: Rule,
    on_features: FeatureTerm | None,
) -> Weights:
    """Take full steps in the span of a client's samples."""
    start = span.enter(weights)
    anchor = span.enter(rule.anchor) if rule.anchor is not None and rule.mu else None
    slope = None if rule.slope is None else span.enter(rule.slope)
    ended = take_steps(
        lambda w, _: span.gradient(w, on_features=on_features),
        start,
        [*moving, *(name for name in start if name not in weights)],
        [None] * steps,
        replace(rule, anchor=anchor, slope=slope),
    )
    return span.leave(ended)


def _add_at(places: list[int], move: Tensors, terms: Tensors, factor: float = 1.0) -> Tensors:
    """Add terms to the tensors that stand at some places."""
    if len(places) == len(move):
        return torch._foreach_add(move, terms, alpha=factor)
    added = torch._foreach_add([move[place] for place in places], terms, alpha=factor)
    changed = dict(zip(places, added, strict=True))
    return [changed.get(place, one) for place, one in enumerate(move)]
