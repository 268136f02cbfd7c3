"""Best convex combinations against enumeration, and against the conditions of the best."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pflego.algorithms.simplex import best_combination
from tests.support.rivals import least_norm


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 8))
def test_it_is_what_enumeration_finds(seed: int, clients: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    points = np.concatenate(
        [rng.normal(size=(clients, width)) + 1, np.diag(rng.uniform(0.1, 1, clients))], axis=1
    )
    ours = best_combination(torch.from_numpy(points @ points.T)).numpy()
    assert np.abs(ours - least_norm(points)).max() < 1e-8


@given(st.integers(0, 10**6), st.integers(1, 60), st.sampled_from([1e-9, 1.0, 1e9]), st.booleans())
def test_nothing_near_it_is_better(seed: int, clients: int, scale: float, flat: bool) -> None:
    """Of any P, singular ones too: no client's share can grow at the cost of another's and gain anything."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(clients, 3 if flat else clients + 2)) + 0.5
    p = scale * points @ points.T
    ours = best_combination(torch.from_numpy(p)).numpy()
    assert ours.min() >= 0
    assert ours.sum() == pytest.approx(1)
    slope = p @ ours
    assert slope.min() >= float(ours @ slope) - 1e-6 * p.diagonal().mean()


@pytest.mark.parametrize(
    ("matrix", "shares"),
    [
        ([[0.0, 0.0], [0.0, 1.0]], [1.0, 0.0]),  # who has neither variance nor distance is taken alone
        ([[0.0, 0.0], [0.0, 0.0]], [0.5, 0.5]),
        ([[1.0, 1.0], [1.0, 1.0]], [0.5, 0.5]),
        ([[1.0, 2.0], [2.0, 9.0]], [1.0, 0.0]),
        ([[4.0]], [1.0]),
    ],
)
def test_by_hand(matrix: list[list[float]], shares: list[float]) -> None:
    ours = best_combination(torch.tensor(matrix))
    p = np.array(matrix)
    best = np.array(shares)
    assert float(ours @ torch.tensor(p) @ ours) == pytest.approx(float(best @ p @ best), abs=1e-9)
    assert float(ours.sum()) == pytest.approx(1)
