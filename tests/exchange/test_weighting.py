"""How much a contribution counts, against NumPy and by going through every cohort that could be drawn."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflego.exchange.weighting import (
    WEIGHTINGS,
    WeightingName,
    by_samples,
    cohort_weights,
    correction,
    equally,
)

sizes = st.lists(st.integers(1, 10**6), min_size=1, max_size=20).map(lambda n: np.array(n, dtype=np.int64))


@given(sizes)
def test_by_samples_every_sample_counts_the_same(counts: npt.NDArray[np.int64]) -> None:
    a = by_samples(counts)
    assert a.dtype == np.float64
    assert a.sum() == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(a, np.divide(counts, np.add.reduce(counts)), rtol=1e-15)


@given(sizes)
def test_equally_every_client_does(counts: npt.NDArray[np.int64]) -> None:
    a = equally(counts)
    assert a.tolist() == [1 / len(counts)] * len(counts)
    assert a.sum() == pytest.approx(1, rel=1e-12)


def test_weightings_have_the_names_that_train_takes() -> None:
    counts = np.array([1, 3])
    assert {name: rule(counts).tolist() for name, rule in WEIGHTINGS.items()} == {
        "samples": [0.25, 0.75],
        "equal": [0.5, 0.5],
    }


@given(sizes, st.floats(1, 100))
def test_normalised_weights_sum_to_one_and_keep_their_proportions(
    counts: npt.NDArray[np.int64], scale: float
) -> None:
    a = by_samples(counts)
    weights = np.array(cohort_weights(a.tolist(), [scale] * len(a), "normalised"))
    np.testing.assert_allclose(weights, counts / counts.sum(), rtol=1e-12)
    assert weights.sum() == pytest.approx(1, rel=1e-12)


def test_a_client_that_takes_part_less_often_counts_for_more_when_it_does() -> None:
    importance, chance = np.array([0.2, 0.5, 0.3]), np.array([0.5, 0.1, 0.8])
    unbiased = cohort_weights(importance.tolist(), (1 / chance).tolist(), "unbiased")
    np.testing.assert_allclose(unbiased, [0.4, 5.0, 0.375], rtol=1e-15)
    normalised = cohort_weights(importance.tolist(), (1 / chance).tolist(), "normalised")
    np.testing.assert_allclose(normalised, np.array([0.4, 5.0, 0.375]) / 5.775, rtol=1e-15)


@pytest.mark.parametrize("name", ["samples", "equal"])
@pytest.mark.parametrize("r", [1, 2, 3, 5])
def test_over_all_cohorts_unbiased_weights_give_everybodys_sum(name: WeightingName, r: int) -> None:
    rng = np.random.default_rng(0)
    counts, contributions = np.array([7, 1, 30, 12, 4]), rng.normal(size=(5, 3))
    a = WEIGHTINGS[name](counts)
    drawn = [list(cohort) for cohort in combinations(range(5), r)]
    sums = [
        np.array(cohort_weights(a[c].tolist(), [5 / r] * r, "unbiased")) @ contributions[c] for c in drawn
    ]
    np.testing.assert_allclose(np.mean(sums, axis=0), a @ contributions, rtol=1e-12)


def test_over_all_outcomes_of_unequal_chances_they_do_too() -> None:
    rng = np.random.default_rng(1)
    chance, contributions = np.array([0.9, 0.2, 0.5, 0.05]), rng.normal(size=(4, 3))
    a = by_samples(np.array([3, 8, 1, 20]))
    expected = np.zeros(3)
    for r in range(5):
        for cohort in combinations(range(4), r):
            there = np.isin(np.arange(4), cohort)
            probability = np.prod(np.where(there, chance, 1 - chance))
            weights = cohort_weights(a[there].tolist(), (1 / chance[there]).tolist(), "unbiased")
            expected += probability * (np.array(weights) @ contributions[there])
    np.testing.assert_allclose(expected, a @ contributions, rtol=1e-12)


def test_nobody_has_no_weight_and_everybody_needs_a_chance() -> None:
    assert cohort_weights([], [], "unbiased") == cohort_weights([], [], "normalised") == []
    with pytest.raises(ValueError, match="zip"):
        cohort_weights([0.5, 0.5], [2.0], "unbiased")


@given(st.lists(st.floats(1e-3, 10), min_size=1, max_size=9), st.data())
def test_what_arrives_is_scaled_to_one_where_that_is_asked_for(
    weights: list[float], data: st.DataObject
) -> None:
    arrived = data.draw(st.lists(st.sampled_from(range(len(weights))), min_size=1, unique=True))
    total = sum(weights[i] for i in arrived)
    complete = len(arrived) == len(weights)
    assert correction(total, complete=complete, missing="zero") == 1
    factor = correction(total, complete=complete, missing="renormalise")
    if complete:
        assert factor == 1  # nothing is missing: unbiased weights stay as they are
    else:
        assert np.sum([factor * weights[i] for i in arrived]) == pytest.approx(1, rel=1e-12)
