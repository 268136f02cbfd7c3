"""Heads of several clients in one call are the heads of each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pflego
from pflego.learning.head_group import HeadGroup
from pflego.learning.heads import HEAD, Descent
from pflego.learning.heads.linear import plain_loops
from pflego.learning.problem import Problem
from pflego.learning.problems import Problems
from pflego.weights import Weights

FEATURES = 7
SIZES, CLASSES = (1, 20, 33, 8), (2, 3, 5, 2)  # a sample alone, and numbers that eight does not divide


@pytest.fixture(name="problems")
def _problems() -> list[Problem]:
    rng = np.random.default_rng(3)
    clients = [
        pflego.Client(i, rng.standard_normal((n, 4), dtype=np.float32), np.arange(n) % k)
        for i, (n, k) in enumerate(zip(SIZES, CLASSES, strict=True))
    ]
    model = pflego.Model(nn.Linear(4, FEATURES), features=FEATURES)
    federation = pflego.Federation(clients)
    return [Problems(federation, model)[place] for place in range(len(clients))]


def features_and_heads(problems: list[Problem]) -> tuple[Tensor, list[Weights]]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(sum(SIZES), FEATURES, generator=generator)
    return features, [
        {HEAD: torch.randn(problem.outputs, FEATURES + 1, generator=generator)} for problem in problems
    ]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("anchored", [False, True])
def test_a_call_for_all_gives_what_each_gets_alone(
    problems: list[Problem], decay: float, anchored: bool
) -> None:
    pytest.importorskip("numba")
    features, heads = features_and_heads(problems)
    group = HeadGroup(problems, features)
    alone = [HeadGroup([problem], part) for problem, part in zip(problems, group.parts, strict=True)]
    descents = [
        Descent(0.1 * (i + 1), decay=decay, anchor={HEAD: head[HEAD] * 2} if anchored else None)
        for i, head in enumerate(heads)
    ]
    assert group.smoothness(heads) == [one.smoothness([w])[0] for one, w in zip(alone, heads, strict=True)]
    assert group.loss(heads) == [one.loss([w])[0] for one, w in zip(alone, heads, strict=True)]
    first = [head[HEAD].clone() for head in heads]
    for place, stepped in enumerate(group.descend(heads, 9, descents)):
        [own] = alone[place].descend([heads[place]], 9, [descents[place]])
        assert torch.equal(stepped[HEAD], own[HEAD])
        assert problems[place].outputs == 1 or not torch.equal(stepped[HEAD], heads[place][HEAD])
    for place, found in enumerate(group.gradient(heads)):
        [own_gradient] = alone[place].gradient([heads[place]])
        assert found.loss == own_gradient.loss
        assert torch.equal(found.head[HEAD], own_gradient.head[HEAD])
        assert torch.equal(found.features, own_gradient.features)
    assert all(torch.equal(head[HEAD], then) for head, then in zip(heads, first, strict=True))


def test_without_compiled_loops_it_is_the_same_but_for_rounding(problems: list[Problem]) -> None:
    features, heads = features_and_heads(problems)
    group = HeadGroup(problems, features)
    descents = [Descent(0.3) for _ in heads]
    compiled = group.descend(heads, 9, descents)
    with plain_loops():
        plain = group.descend(heads, 9, descents)
        assert group.loss(plain) == pytest.approx(group.loss(compiled), rel=1e-5)
    for one, other in zip(compiled, plain, strict=True):
        torch.testing.assert_close(one[HEAD], other[HEAD], rtol=1e-4, atol=1e-5)


def test_without_steps_heads_stay(problems: list[Problem]) -> None:
    features, heads = features_and_heads(problems)
    stayed = HeadGroup(problems, features).descend(heads, 0, [Descent(0.3) for _ in heads])
    assert all(torch.equal(one[HEAD], other[HEAD]) for one, other in zip(stayed, heads, strict=True))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_side_by_side_in_float64_they_are_what_each_is_alone(task: str) -> None:
    """Sizes and outputs differ, so that some clients are filled up and some are in other tensors."""
    rng = np.random.default_rng(4)
    sizes, classes = (5, 7, 6, 20, 33, 1), (2, 2, 2, 2, 3, 1)

    def labels(n: int, k: int) -> object:
        return np.arange(n) % k if task == "classification" else rng.standard_normal((n, 2))

    clients = [
        pflego.Client(i, rng.standard_normal((n, 4)), labels(n, k))  # type: ignore[arg-type]
        for i, (n, k) in enumerate(zip(sizes, classes, strict=True))
    ]
    model = pflego.Model(nn.Linear(4, FEATURES).double(), features=FEATURES)
    everybody = Problems(pflego.Federation(clients), model)
    problems = [everybody[place] for place in range(len(clients))]
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(sum(sizes), FEATURES, generator=generator, dtype=torch.float64)
    heads = [
        {HEAD: torch.randn(p.outputs, FEATURES + 1, generator=generator, dtype=torch.float64)}
        for p in problems
    ]
    descents = [
        Descent(0.02 * (i + 1), decay=0.1 * (i % 2), anchor={HEAD: head[HEAD] / 3} if i == 3 else None)
        for i, head in enumerate(heads)
    ]
    group = HeadGroup(problems, features)
    alone = [HeadGroup([problem], part) for problem, part in zip(problems, group.parts, strict=True)]
    each = list(zip(alone, heads, descents, strict=True))
    assert group.smoothness(heads) == pytest.approx([one.smoothness([w])[0] for one, w, _ in each], rel=1e-12)
    assert group.loss(heads) == pytest.approx([one.loss([w])[0] for one, w, _ in each], rel=1e-12)
    stepped, gradients = group.descend(heads, 9, descents), group.gradient(heads)
    for place, (one, w, descent) in enumerate(each):
        [own], [slope] = one.descend([w], 9, [descent]), one.gradient([w])
        torch.testing.assert_close(stepped[place][HEAD], own[HEAD], rtol=0, atol=1e-12)
        torch.testing.assert_close(gradients[place].head[HEAD], slope.head[HEAD], rtol=0, atol=1e-12)
        torch.testing.assert_close(gradients[place].features, slope.features, rtol=0, atol=1e-12)
        assert float(gradients[place].loss) == pytest.approx(float(slope.loss), rel=1e-12)


def test_one_step_of_all_and_their_weighted_slopes_are_those_of_each(problems: list[Problem]) -> None:
    features, heads = features_and_heads(problems)
    group = HeadGroup(problems, features)
    found, rates, weights = group.gradient(heads), [0.1, 0.2, 0.3, 0.4], [1.0, 0.5, 2.0, 0.25]
    stepped = group.step(heads, [one.head for one in found], rates)
    for head, one, rate, own in zip(heads, found, rates, stepped, strict=True):
        torch.testing.assert_close(own[HEAD], head[HEAD] - rate * one.head[HEAD])
    expected = torch.cat([weight * one.features for weight, one in zip(weights, found, strict=True)])
    torch.testing.assert_close(group.slopes(found, weights), expected)
