from __future__ import annotations

import numpy as np
import pytest

from pflego.advice.statistics import Chance, beside_chance, interval_of, of_pairs, pair_mean, resampled


@pytest.mark.parametrize("units", [6, 20])
def test_intervals_contain_the_truth_as_often_as_they_say(units: int) -> None:
    generator = np.random.default_rng(units)
    caught = []
    for number in range(300):
        values = generator.normal(0.3, 1.0, size=(units, 1))
        drawn = resampled(values, np.zeros(units, np.int64), seed=number, draws=500)[:, 0] / units
        found = interval_of(drawn, units)
        caught.append(found.low <= 0.3 <= found.high)
    assert 0.91 <= np.mean(caught) <= 0.98


def test_a_figure_that_scatters_like_its_units_has_the_bootstraps_textbook_error() -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    drawn = resampled(values[:, None], np.zeros(5, np.int64), seed=0, draws=20_000)[:, 0] / 5
    assert drawn.mean() == pytest.approx(values.mean(), abs=0.08)
    assert drawn.std() == pytest.approx(values.std() / np.sqrt(5), rel=0.03)


def test_strata_keep_their_sizes() -> None:
    sums = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    drawn = resampled(sums, np.array([0, 0, 0, 1]), seed=0, draws=50)
    assert np.array_equal(drawn, np.tile([3.0, 1.0], (50, 1)))


def test_it_is_a_function_of_the_seed() -> None:
    values = np.arange(8.0)[:, None]
    one, same, other = (resampled(values, np.zeros(8, np.int64), seed=s, draws=9) for s in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_pairs_of_a_client_with_itself_do_not_count() -> None:
    matrix = np.array([[100.0, 1.0, 2.0], [1.0, 100.0, 6.0], [2.0, 6.0, 100.0]])
    assert pair_mean(matrix) == pytest.approx(3.0)
    drawn = of_pairs(matrix, seed=0, draws=2000)
    # three clients drawn with replacement: all different (mean 3), or one twice (a mean over its pair with another)
    assert {round(float(value), 6) for value in drawn} == {1.0, 2.0, 3.0, 6.0}
    assert drawn.mean() == pytest.approx(3.0, abs=0.15)


def test_chance_is_what_dealing_gives() -> None:
    found = beside_chance(2.0, lambda generator: float(generator.uniform(0, 1)), seed=0)
    assert found.real
    assert found.by_chance == pytest.approx(0.5, abs=0.1)
    assert found.rarely == pytest.approx(0.99, abs=0.02)
    assert not Chance(0.9, 0.5, 0.95).real
    assert Chance(0.9, 0.5, 0.95).beyond == pytest.approx(0.8)
