"""Robust rules against NumPy and SciPy, what liars can and cannot do under them, and their settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from typer.testing import CliRunner

import pflego
from pflego.cli import app
from pflego.errors import SettingError
from pflego.exchange.aggregation import Aggregation, aggregation_of
from pflego.weights import Weights
from tests.support.reference import F64

WEIGHTS = np.array([0.5, 1.5, 1.0, 0.25, 2.0, 0.75, 0.2])
RULES: list[Aggregation] = [
    pflego.Median(),
    pflego.TrimmedMean(0.3),
    pflego.Krum(2),
    pflego.Krum(2, best=3),
    pflego.GeometricMedian(),
    pflego.NormBound(),
]


def sent(seed: int = 0, clients: int = 7) -> list[Weights]:
    rng = np.random.default_rng(seed)
    return [
        {"a": torch.from_numpy(rng.normal(size=(3, 2))), "b": torch.from_numpy(rng.normal(size=4))}
        for _ in range(clients)
    ]


def rows(contributions: list[Weights]) -> F64:
    return np.stack([np.concatenate([c["a"].numpy().ravel(), c["b"].numpy()]) for c in contributions])


def combined(rule: Aggregation, contributions: list[Weights], weights: F64 = WEIGHTS) -> F64:
    """What a rule gives, less the factor sum_i w_i."""
    return np.asarray(rows([rule.combine(contributions, weights.tolist())])[0] / weights.sum())


@pytest.mark.parametrize("clients", [6, 7])
def test_the_median_is_that_of_every_number(clients: int) -> None:
    contributions = sent(clients=clients)
    ours = combined(pflego.Median(), contributions, WEIGHTS[:clients])
    assert np.abs(ours - np.median(rows(contributions), axis=0)).max() < 1e-14


def test_a_weighted_median_has_half_of_the_weight_on_either_side() -> None:
    contributions = sent()
    ours, table = combined(pflego.Median(weighted=True), contributions), rows(contributions)
    for place, value in enumerate(ours):
        half = WEIGHTS.sum() / 2
        assert WEIGHTS[table[:, place] < value - 1e-12].sum() <= half
        assert WEIGHTS[table[:, place] > value + 1e-12].sum() <= half
    copies = np.repeat(np.arange(4), [1, 2, 3, 2])  # whole weights are as many clients
    few, often = contributions[:4], [contributions[i] for i in copies]
    weighted = combined(pflego.Median(weighted=True), few, np.array([1.0, 2, 3, 2]))
    assert np.abs(weighted - np.median(rows(often), axis=0)).max() < 1e-14


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3, 0.45])
def test_the_trimmed_mean_is_scipys(share: float) -> None:
    contributions = sent()
    ours = combined(pflego.TrimmedMean(share), contributions)
    assert np.abs(ours - stats.trim_mean(rows(contributions), share, axis=0)).max() < 1e-14


def test_a_weighted_trimmed_mean_is_that_of_as_many_clients() -> None:
    contributions, copies = sent(clients=4), np.repeat(np.arange(4), [1, 2, 3, 4])
    ours = combined(pflego.TrimmedMean(0.2, weighted=True), contributions, np.array([1.0, 2, 3, 4]))
    often = rows([contributions[i] for i in copies])
    assert np.abs(ours - stats.trim_mean(often, 0.2, axis=0)).max() < 1e-12


@pytest.mark.parametrize(("bad", "best"), [(0, 1), (1, 1), (2, 1), (2, 3), (1, 7)])
def test_krum_chooses_who_is_nearest_to_its_neighbours(bad: int, best: int) -> None:
    table = rows(contributions := sent())
    scores = []
    for i, row in enumerate(table):
        others = sorted(float(((row - other) ** 2).sum()) for j, other in enumerate(table) if j != i)
        scores.append(sum(others[: len(table) - bad - 2]))
    chosen = np.argsort(scores)[:best]
    ours = combined(pflego.Krum(bad, best=best), contributions)
    assert np.abs(ours - table[chosen].mean(axis=0)).max() < 1e-14


@pytest.mark.parametrize("weighted", [False, True])
def test_the_geometric_median_has_the_smallest_sum_of_distances(weighted: bool) -> None:
    table = rows(contributions := sent())
    own = WEIGHTS if weighted else np.ones(7)

    def total(point: F64) -> float:
        return float((own * np.linalg.norm(table - point, axis=1)).sum())

    found = optimize.minimize(total, table.mean(axis=0), method="BFGS", options={"gtol": 1e-10})
    ours = combined(pflego.GeometricMedian(weighted=weighted), contributions)
    assert np.abs(ours - found.x).max() < 1e-5
    assert total(ours) <= found.fun + 1e-9


def test_the_geometric_median_may_be_one_of_the_contributions() -> None:
    [one, other] = sent(clients=2)
    ours = combined(pflego.GeometricMedian(), [one, one, one, other], np.ones(4))
    assert np.abs(ours - rows([one])[0]).max() < 1e-8
    assert np.abs(combined(pflego.GeometricMedian(), [one, one], np.ones(2)) - rows([one])[0]).max() < 1e-14


@pytest.mark.parametrize("limit", [None, 0.5, 100.0])
def test_a_norm_bound_shortens_what_is_longer(limit: float | None) -> None:
    table = rows(contributions := sent())
    lengths = np.linalg.norm(table, axis=1)
    bound = np.median(lengths) if limit is None else limit
    theirs = (WEIGHTS[:, None] * table * np.minimum(1, bound / lengths)[:, None]).sum(axis=0) / WEIGHTS.sum()
    assert np.abs(combined(pflego.NormBound(limit), contributions) - theirs).max() < 1e-14


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(
    "lie", [lambda c: -1e6 * c, lambda c: 0 * c + 1e9, lambda c: 1e12 * c], ids=["sign", "one point", "scale"]
)
def test_two_liars_of_seven_move_the_result_no_further_than_honest_clients_lie_apart(
    rule: Aggregation, lie: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    honest = sent()
    center = {name: torch.stack([c[name] for c in honest]).mean(dim=0) for name in honest[0]}
    liars = [{name: lie(t) for name, t in c.items()} for c in honest[:2]]
    equal = np.ones(7)
    ours = combined(rule, [*liars, *honest[2:]], equal)
    reach = max(np.linalg.norm(rows([c])[0] - rows([center])[0]) for c in honest)
    assert np.linalg.norm(ours - rows([center])[0]) < 2 * reach
    mean = combined(pflego.Mean(), [*liars, *honest[2:]], equal)
    assert np.linalg.norm(mean - rows([center])[0]) > 100 * reach


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_one_client_is_itself_and_order_does_not_matter(rule: Aggregation) -> None:
    contributions = sent()
    assert (
        np.abs(combined(rule, contributions[:1], np.array([0.7])) - rows(contributions[:1])[0]).max() < 1e-14
    )
    shuffled = [3, 1, 6, 0, 5, 2, 4]
    again = combined(rule, [contributions[i] for i in shuffled], WEIGHTS[shuffled])
    assert np.abs(combined(rule, contributions) - again).max() < 1e-9


def test_names_may_come_in_another_order() -> None:
    contributions = sent()
    turned = [dict(reversed(c.items())) if k % 2 else c for k, c in enumerate(contributions)]
    assert np.array_equal(combined(pflego.Median(), turned), combined(pflego.Median(), contributions))


@pytest.mark.parametrize("make", [
    lambda: pflego.TrimmedMean(0.5), lambda: pflego.TrimmedMean(-0.1), lambda: pflego.Krum(-1),
    lambda: pflego.Krum(1, best=0), lambda: pflego.NormBound(0),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(SettingError):
        make()


@pytest.mark.parametrize(
    "text",
    ["mean", "median", "median:weighted", "trimmed:0.2", "trimmed:0.1/weighted", "krum:2", "krum:1/4", "geometric",
     "geometric:weighted", "normbound", "normbound:0.5"],
)  # fmt: skip
def test_a_rule_is_spelled_as_it_is_read(text: str) -> None:
    assert str(aggregation_of(text)) == text
    assert aggregation_of(str(aggregation_of(text))) == aggregation_of(text)


def test_a_run_under_a_rule_is_opened_with_it(tmp_path: Path) -> None:
    words = [
        "--clients",
        "6",
        "--rounds",
        "2",
        "--steps",
        "3",
        "--aggregation",
        "trimmed:0.2",
        "--out",
        str(tmp_path / "a"),
    ]
    assert CliRunner().invoke(app, ["run", *words], catch_exceptions=False).exit_code == 0
    assert pflego.open_run(tmp_path / "a").plan.aggregation == pflego.TrimmedMean(0.2)
