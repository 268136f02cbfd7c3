"""Whose contribution counts how much, and what becomes of the weights of replies that do not arrive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego.algorithms.registry import methods
from pflego.engines.play import Exchange
from pflego.exchange.weighting import (
    Missing,
    WeightingName,
    by_samples,
    cohort_weights,
    correction,
    equally,
)
from pflego.federation.network import Network
from tests.support.cases import often
from tests.support.reference import cohorts, world
from tests.support.rivals import assert_at, every_method

ROUNDS, SEED, CLIENTS, R = 8, 3, 5, 3
CHOSEN = cohorts(pflego.Fixed(R), CLIENTS, rounds=ROUNDS, seed=SEED)
METHODS = every_method(tau=4, beta=0.15, rho=0.03, scale=CLIENTS / R, seed=SEED)
SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=8)


def delivered(i: int, t: int) -> bool:
    return Network(dropout=0.5).delivers(samples=1, passes=1, client=f"c{i}", number=t, seed=SEED)


def test_no_method_is_left_out() -> None:
    assert METHODS.keys() == methods().keys()


@pytest.mark.parametrize("weighting", often(["samples", "equal"]))
@pytest.mark.parametrize("missing", ["zero", "renormalise"])
@pytest.mark.parametrize("name", often(methods(), "pflego", "fedavg"))
def test_a_missing_reply_means_the_same_to_every_method(
    name: str, missing: Missing, weighting: WeightingName
) -> None:
    """w_i is a share of the cohort, of PFLEGO a_i I/r; a lost difference or gradient is nothing, or nobody's share."""
    twin, rival = world(), METHODS[name]
    run = pflego.train(
        twin.federation,
        twin.model,
        rival.algorithm,
        rounds=ROUNDS,
        participation=R,
        seed=SEED,
        dropout=0.5,
        missing=missing,
        weighting=weighting,
    )
    simulation, arrived = rival.play(
        twin,
        CHOSEN,
        arrives=delivered,
        renormalise=missing == "renormalise",
        counts=() if weighting == "samples" else (1.0,) * CLIENTS,
    )
    assert {0, 1, 2} <= set(arrived)
    assert [row["missing"] for row in run.history] == [R - n for n in arrived]
    assert_at(run, simulation)


# Local sends nothing, FedProto sums that are divided by others
@pytest.mark.parametrize("name", often(sorted(METHODS.keys() - {"local", "fedproto"}), "pflego"))
def test_the_two_rules_are_not_the_same(name: str) -> None:
    twin = world()
    zero, renormalised = (
        METHODS[name].play(twin, CHOSEN, arrives=delivered, renormalise=renormalise)[0].shared
        for renormalise in (False, True)
    )
    at = min(zero)  # any of what is shared
    assert np.linalg.norm(zero[at] - renormalised[at]) > 1e-3 * np.linalg.norm(zero[at])


@given(SIZES)
def test_whose_loss_counts_how_much_sums_to_one(sizes: list[int]) -> None:
    ours, same = by_samples(np.array(sizes)), equally(np.array(sizes))
    assert ours.sum() == pytest.approx(1, rel=1e-12)
    assert ours.tolist() == pytest.approx([n / sum(sizes) for n in sizes], rel=1e-12)
    assert same.tolist() == [1 / len(sizes)] * len(sizes)


@given(SIZES, st.integers(0, 5000), st.floats(0.5, 20))
def test_with_every_reply_both_rules_give_the_papers_shares(
    sizes: list[int], others: int, expected: float
) -> None:
    """I/r N_i / N for a method that estimates a sum; N_i over the cohort's samples for one that averages."""
    total, scale = sum(sizes) + others, 20 / expected
    importance = [n / total for n in sizes]
    unbiased = cohort_weights(importance, [scale] * len(sizes), "unbiased")
    averaging = cohort_weights(importance, [scale] * len(sizes), "normalised")
    assert unbiased == pytest.approx([20 / expected * n / total for n in sizes], rel=1e-12)
    assert averaging == pytest.approx([n / sum(sizes) for n in sizes], rel=1e-12)
    for missing in ("zero", "renormalise"):
        assert correction(sum(unbiased), complete=True, missing=missing) == 1


@given(SIZES, st.integers(1, 5), st.floats(0.5, 20))
def test_where_replies_are_missing_the_rules_differ_by_a_factor(
    sizes: list[int], lost: int, expected: float
) -> None:
    """Weights of those that arrived stay as they are, or become N_i over the samples that arrived."""
    total = sum(sizes) + 77 * lost
    for kind in ("unbiased", "normalised"):
        importance = [n / total for n in [*sizes, *[77] * lost]]
        weights = cohort_weights(importance, [20 / expected] * len(importance), kind)[: len(sizes)]
        assert correction(sum(weights), complete=False, missing="zero") == 1
        factor = correction(sum(weights), complete=False, missing="renormalise")
        assert [factor * w for w in weights] == pytest.approx([n / sum(sizes) for n in sizes], rel=1e-9)


def test_where_nothing_arrives_there_is_nothing_to_scale() -> None:
    assert correction(0.0, complete=False, missing="renormalise") == 1


@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_a_client_is_told_its_weight_and_its_chance(weighting: WeightingName) -> None:
    sizes = np.array([10, 30, 60])
    exchange = Exchange.of(pflego.PFLEGO(), sizes, expected=1.5, weighting=weighting)
    turns = exchange.turns(exchange.round(4), [0, 2])
    shares = [0.1, 0.6] if weighting == "samples" else [1 / 3, 1 / 3]
    assert [turn.now.alpha for turn in turns] == pytest.approx(shares)
    assert [turn.weight for turn in turns] == pytest.approx([2 * share for share in shares])
    assert {(turn.now.number, turn.now.scale) for turn in turns} == {(4, 2.0)}


def test_unknown_rules_are_refused_by_name() -> None:
    twin = world()
    for wrong in ({"missing": "ignore"}, {"weighting": "size"}):
        with pytest.raises(pflego.SettingError, match=next(iter(wrong))):
            pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=1, **wrong)  # type: ignore[arg-type]
