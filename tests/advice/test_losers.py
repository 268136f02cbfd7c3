from __future__ import annotations

import numpy as np
import pytest

from pflego import PFLEGO, FedAvg, Local
from pflego.advice.contest import Candidate, Contest, Split
from pflego.advice.losers import Losers, losers
from pflego.advice.words import _of_losers
from pflego.learning.task import Classification, Regression, Task
from pflego.report.words import Metric

IDS = ["home", "a", "b", "c"]
WAYS = {"alone": Local(), "one-model": FedAvg(), "own-heads": PFLEGO()}


def contest(task: Task, **scores: list[list[float]]) -> Contest:
    """Two equal splits; one list of samples per client, and nobody at position 0 was tried."""
    sizes = [len(own) for own in next(iter(scores.values()))]
    owners = np.repeat(np.arange(1, 1 + len(sizes)), sizes)
    by_way = {
        Candidate(name.replace("_", "-"), WAYS[name.replace("_", "-")], 1): np.concatenate(own).astype(float)
        for name, own in scores.items()
    }
    return Contest(task, [Split(owners, by_way), Split(owners, by_way)], {})


def classified() -> Contest:
    return contest(
        Classification(),
        own_heads=[[0, 0, 0, 1], [0, 1, 1, 1, 1], [1, 0]],
        alone=[[1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0]],
        one_model=[[0, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0]],
    )


def test_those_who_do_better_elsewhere_are_counted_named_and_measured() -> None:
    alone, one_model = losers(classified(), "own-heads", IDS, seed=0)
    assert (alone.otherwise, one_model.otherwise) == ("alone", "with one model")
    assert list(alone.losses) == ["a", "b"]
    assert alone.losses == pytest.approx({"a": 0.75, "b": 0.2})
    assert alone.clients == 3
    assert (alone.worst_tenth, alone.worst_tenth_otherwise) == (0.25, 0.0)
    assert one_model.losses == {}
    assert one_model.worst_tenth_otherwise == 0.0


def test_a_loss_is_clear_where_signs_drawn_at_random_are_rarely_as_bad() -> None:
    """Over both splits a loses 6 of 6 samples, 1 time in 64 by chance; b loses 2 of 2, 1 time in 4."""
    alone, _ = losers(classified(), "own-heads", IDS, seed=0)
    assert alone.clear == ("a",)
    mixed = contest(
        Classification(),
        own_heads=[[0, 0, 0, 0, 1]],  # 8 lose and 2 win: 56 of 1024 draws are as bad, more than 1 in 20
        alone=[[1, 1, 1, 1, 0]],
        one_model=[[0, 0, 0, 0, 1]],
    )
    alone, _ = losers(mixed, "own-heads", IDS, seed=0)
    assert list(alone.losses) == ["a"]
    assert alone.clear == ()


def test_where_both_ways_are_alike_about_one_in_twenty_is_called_clear() -> None:
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(2, 1000, 10)) ** 2  # squared errors of 1,000 clients
    owners = np.repeat(np.arange(1000), 5)
    splits = []
    for half in (noise[:, :, :5], noise[:, :, 5:]):
        ways = zip(("own-heads", "alone", "one-model"), (half[0], half[1], half[0]), strict=True)
        splits.append(Split(owners, {Candidate(n, WAYS[n], 1): s.ravel() for n, s in ways}))
    alone, same = losers(
        Contest(Regression(), splits, {}), "own-heads", [str(k) for k in range(1000)], seed=0
    )
    assert 440 < len(alone.losses) < 560
    assert 25 < len(alone.clear) < 75  # 50, give or take 3.6 standard deviations
    assert (same.losses, same.clear) == ({}, ())


def test_in_regression_a_lower_error_elsewhere_is_a_loss() -> None:
    held = contest(
        Regression(), own_heads=[[9.0], [1.0]], alone=[[4.0], [4.0]], one_model=[[9.0], [1.0]]
    )  # squared errors
    alone, _ = losers(held, "own-heads", IDS, seed=0)
    assert alone.losses == pytest.approx({"a": 1.0})
    assert (alone.worst_tenth, alone.worst_tenth_otherwise) == (3.0, 2.0)


@pytest.mark.parametrize(("chosen", "others"), [("alone", ["with one model"]), ("one-model", ["alone"])])
def test_a_way_is_not_compared_with_itself(chosen: str, others: list[str]) -> None:
    assert [one.otherwise for one in losers(classified(), chosen, IDS, seed=0)] == others


def test_the_words_name_a_few() -> None:
    metric = Metric.of(Classification())
    few = Losers("alone", {"x": 0.2, "y": 0.1, "z": 0.05, "w": 0.01}, ("x",), 9, 0.5, 0.6)
    words = _of_losers(few, metric).replace("\N{NO-BREAK SPACE}", " ")
    assert words == (
        "4 of 9 clients would be better off alone: x by 20.0 points, y by 10.0 points, z by 5.0 points and 1 more, "
        "beyond chance for 1 of them (x); the worst tenth has 50.0 % this way and 60.0 % alone."
    )
    nobody = Losers("with one model", {}, (), 9, 0.5, 0.4)
    assert _of_losers(nobody, metric).startswith("Of 9 clients nobody would be better off with one model;")
