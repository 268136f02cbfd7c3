"""Numbers of a secure sum: what is lost by rounding, and what is not lost at all."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pflego
from pflego.deploy.flower.secure.fixed_point import Layout, added


@settings(max_examples=100, deadline=None)
@given(
    parties=st.integers(3, 200),
    values=st.integers(1, 5000),
    clip=st.floats(1e-6, 1e6),
    part=st.floats(1e-3, 1.0),
    seed=st.integers(0, 1000),
)
def test_a_sum_errs_by_less_than_a_ten_thousandth(
    parties: int, values: int, clip: float, part: float, seed: int
) -> None:
    """All contributions point the same way, so that the sum's norm is `part` of what the clip allows."""
    generator = np.random.default_rng(seed)
    direction = generator.normal(size=values)
    direction *= part * clip / np.linalg.norm(direction)
    weights = generator.dirichlet(np.ones(parties))
    layout = Layout(values, 0, parties, float(weights.sum()) * clip)
    words = added(layout.encode(w * direction, np.zeros(0)) for w in weights)
    total, _ = layout.decode(layout.unpack(layout.pack(words)))
    exact = weights.sum() * direction
    assert np.linalg.norm(total - exact) < 1e-4 * np.linalg.norm(exact)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_sum_there_can_be_stays_in_its_range(sign: float) -> None:
    layout = Layout(3, 0, 50, 50 * 0.3)
    full = layout.encode(np.full(3, sign * 0.3), np.zeros(0))
    total, _ = layout.decode(layout.unpack(layout.pack(full * np.uint64(50))))
    np.testing.assert_allclose(total, sign * 15.0, rtol=1e-6)


def test_numbers_take_as_few_bytes_as_will_do() -> None:
    """2^(8 width) >= parties sqrt(values) 1e7, from the worst case of rounding."""
    for parties, values in [(3, 10), (10, 13_000), (100, 157_000), (1000, 7_000_000)]:
        width = Layout(values, 0, parties, 1.0).width
        assert 2.0 ** (8 * width) >= parties * sqrt(values) * 1e7
        assert width == 4 or 2.0 ** (8 * (width - 1)) < parties * sqrt(values) * 1.01e7
    with pytest.raises(pflego.UserError, match="too many"):
        _ = Layout(10**14, 0, 10**5, 1.0).width


def test_figures_are_counted_exactly_and_measured_finely() -> None:
    layout = Layout(0, 3, 3, 1.0)
    rows = np.array([[1e6, 0.1, -3.0], [2.0, 0.25, 1e9], [0.0, 1e-3, 5.0]])
    words = added(layout.encode(np.zeros(0), row) for row in rows)
    _, total = layout.decode(layout.unpack(layout.pack(words)))
    assert total[0] == 1_000_002
    np.testing.assert_allclose(total, rows.sum(axis=0), atol=3 * 2.0**-25)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), values=st.integers(0, 50), figures=st.integers(0, 5))
def test_words_and_bytes_are_the_same_numbers(seed: int, values: int, figures: int) -> None:
    layout = Layout(values, figures, 5, 1.0)
    words = np.random.default_rng(seed).integers(0, 2**64, size=values + figures, dtype=np.uint64)
    data = layout.pack(words)
    assert len(data) == layout.size
    again = layout.unpack(data)
    kept = np.uint64(2 ** (8 * layout.width) - 1)
    assert (again[:values] == words[:values] & kept).all()
    assert (again[values:] == words[values:]).all()
    assert layout.pack(again) == data
