from __future__ import annotations

import numpy as np
import pytest

from pflego import PFLEGO, FedAvg
from pflego.advice.contest import Candidate, Contest, Fair, Split
from pflego.advice.statistics import Interval
from pflego.advice.verdict import Verdict, answer, judge, shrinks
from pflego.learning.task import Classification, Regression
from pflego.report.words import Metric


@pytest.mark.parametrize(
    ("sure", "probable", "shrinking", "word"),
    [
        ((0.02, 0.04), (0.025, 0.035), False, "yes"),
        ((0.02, 0.04), (0.025, 0.035), True, "probably"),
        ((-0.01, 0.04), (0.001, 0.03), False, "probably"),
        ((-0.02, 0.04), (-0.01, 0.03), False, "can't tell"),
        ((-0.009, 0.009), (-0.005, 0.005), False, "no difference"),
        ((0.001, 0.009), (0.002, 0.008), False, "no difference"),  # sure, but too little to matter
        ((-0.04, 0.01), (-0.03, -0.001), False, "probably not"),
        ((-0.04, -0.02), (-0.03, -0.025), False, "no"),
        ((-0.04, -0.02), (-0.03, -0.025), True, "probably not"),
    ],
)
def test_words_follow_from_intervals(
    sure: tuple[float, float], probable: tuple[float, float], shrinking: bool, word: Verdict
) -> None:
    assert judge(Interval(*sure), Interval(*probable), margin=0.01, shrinking=shrinking) == word


def sides(ours: list[list[float]], theirs: list[list[float]]) -> tuple[Fair, Fair]:
    """Scores of two sides, a list of samples a client."""
    owners = np.repeat(np.arange(len(ours)), [len(own) for own in ours])
    first, second = (Fair(owners, np.concatenate(side), ()) for side in (ours, theirs))
    return first, second


def names(clients: int) -> list[str]:
    return [f"client {k}" for k in range(clients)]


def test_a_gain_is_over_all_samples_and_clients_are_counted_one_by_one() -> None:
    ours, theirs = sides([[1, 1, 1, 0], [1, 1], [0, 0]], [[1, 0, 0, 0], [1, 1], [1, 0]])
    found = answer("?", ours, theirs, names(3), Classification(), shrinking=False, seed=0)
    assert found.gain == pytest.approx(5 / 8 - 4 / 8)
    assert (found.better, found.worse, found.clients) == (1, 1, 3)
    assert found.gains == pytest.approx({"client 0": 0.5, "client 1": 0.0, "client 2": -0.5})


def test_in_regression_a_lower_error_is_a_gain() -> None:
    ours, theirs = sides([[1.0, 4.0]] * 8, [[4.0, 16.0]] * 8)  # squared errors
    found = answer("?", ours, theirs, names(8), Regression(), shrinking=False, seed=0)
    assert found.gain == pytest.approx(np.sqrt(10) - np.sqrt(2.5))
    assert found.verdict == "yes"
    assert found.better == 8
    said = found.words(Metric.of(Regression()), over="one model")
    assert said == "Yes, over one model: rmse 1.58 lower (1.6 to 1.6); 8 of 8 clients gain, 0 lose."


def test_what_all_clients_gain_is_sure_and_what_half_of_them_lose_is_not() -> None:
    generator = np.random.default_rng(0)
    right = [list((generator.random(40) < 0.9).astype(float)) for _ in range(20)]
    wrong = [list((generator.random(40) < 0.6).astype(float)) for _ in range(20)]
    metric = Metric.of(Classification())
    pays = answer("?", *sides(right, wrong), names(20), Classification(), shrinking=False, seed=0)
    assert pays.verdict == "yes"
    assert pays.words(metric, over="it").startswith(f"Yes, over it: +{100 * pays.gain:.1f} points (")
    mixed = [right[k] if k % 2 else wrong[k] for k in range(20)]
    other = [wrong[k] if k % 2 else right[k] for k in range(20)]
    unsure = answer("?", *sides(mixed, other), names(20), Classification(), shrinking=False, seed=0)
    assert unsure.verdict == "can't tell"
    assert "smaller than what 20 clients can show" in unsure.words(metric, over="it")


def test_with_few_clients_the_interval_is_over_their_samples() -> None:
    generator = np.random.default_rng(0)
    ours = [list((generator.random(100) < 0.9).astype(float)) for _ in range(3)]
    theirs = [list((generator.random(100) < 0.6).astype(float)) for _ in range(3)]
    found = answer("?", *sides(ours, theirs), names(3), Classification(), shrinking=False, seed=0)
    assert found.over == "samples"
    assert found.verdict == "yes"
    difference = np.concatenate(ours) - np.concatenate(theirs)
    error = np.sqrt(sum(np.var(difference[k * 100 : k * 100 + 100]) / 100 for k in range(3)) / 9)
    assert found.interval.high - found.interval.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_few_samples_without_a_difference_do_not_show_that_there_is_none() -> None:
    few = answer(
        "?", *sides([[1.0] * 5] * 8, [[1.0] * 5] * 8), names(8), Classification(), shrinking=False, seed=0
    )
    many = answer(
        "?", *sides([[1.0] * 50] * 8, [[1.0] * 50] * 8), names(8), Classification(), shrinking=False, seed=0
    )
    assert (few.verdict, many.verdict) == ("can't tell", "no difference")


@pytest.mark.parametrize(("last", "expected"), [(0.9, False), (0.66, True), (0.5, True)])
def test_a_lead_that_melts_away_is_noticed(last: float, expected: bool) -> None:
    rounds, ours, theirs = [10, 20, 30], [0.6, 0.8, last], [0.5, 0.5, 0.5]
    first, second = PFLEGO(), FedAvg()
    scores = {Candidate("own-heads", first, r): np.array([v]) for r, v in zip(rounds, ours, strict=True)}
    scores |= {Candidate("one-model", second, r): np.array([v]) for r, v in zip(rounds, theirs, strict=True)}
    contest = Contest(Classification(), [Split(np.zeros(1, np.int64), scores)], {})
    assert shrinks(contest, ["own-heads"], ["one-model"]) is expected
    assert shrinks(contest, ["one-model"], ["own-heads"]) is expected
