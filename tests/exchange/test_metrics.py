"""What clients measure: combined as NumPy would, whoever it is combined with first, and found in the history."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego import SettingError
from pflego.exchange.metrics import Metric, combine, largest, mean, total
from pflego.learning.problem import Problem
from pflego.weights import Weights, norm
from tests.support.reference import gradients, world

finite = st.floats(-1e6, 1e6)
weights = st.integers(1, 1000) | st.floats(1e-3, 1e3)
measured = st.lists(st.tuples(finite, weights), min_size=1, max_size=12)


def of_client(value: float, weight: float) -> dict[str, Metric]:
    return {"sum": total(value), "mean": mean(value, weight), "top": largest(value)}


def values_of(metrics: dict[str, Metric]) -> dict[str, float | None]:
    return {name: metric.value for name, metric in metrics.items()}


@given(measured)
def test_they_are_combined_as_numpy_would(clients: list[tuple[float, float]]) -> None:
    values, by = np.array(clients, dtype=np.float64).T
    found = values_of(combine(of_client(*client) for client in clients))
    assert found == {
        "sum": pytest.approx(values.sum(), rel=1e-9, abs=1e-6),
        "mean": pytest.approx(np.average(values, weights=by), rel=1e-9, abs=1e-6),
        "top": values.max(),
    }


@given(measured, st.integers(0, 12))
def test_it_does_not_matter_who_is_combined_first(clients: list[tuple[float, float]], cut: int) -> None:
    parts = [of_client(*client) for client in clients]
    once, twice = combine(parts), combine([combine(parts[:cut]), combine(parts[cut:])])
    assert once.keys() == twice.keys()
    for name, metric in once.items():
        assert twice[name].value == pytest.approx(metric.value, rel=1e-9, abs=1e-6)
        assert twice[name].weight == pytest.approx(metric.weight)


def test_who_has_not_measured_something_does_not_count() -> None:
    found = combine([{"a": mean(1.0, weight=3)}, {"b": total(5)}, {"a": mean(5.0, weight=1)}, {}])
    assert values_of(found) == {"a": 2.0, "b": 5}


def test_a_mean_of_nothing_is_not_known() -> None:
    assert mean(3.0, weight=0).value is None
    assert combine([{"a": mean(3.0, weight=0)}, {"a": mean(4.0, weight=2)}])["a"].value == 4.0
    assert combine([]) == {}


def test_nothing_that_is_combined_is_changed() -> None:
    parts = [{"a": total(1)}, {"a": total(2)}]
    assert combine(parts)["a"].value == 3
    assert parts == [{"a": total(1)}, {"a": total(2)}]


@pytest.mark.parametrize(
    ("one", "other"), [(total(1), mean(1)), (mean(1), largest(1)), (largest(1), total(1))]
)
def test_one_name_has_one_meaning(one: Metric, other: Metric) -> None:
    with pytest.raises(SettingError, match="two names"):
        combine([{"a": one}, {"a": other}])


class Measuring(pflego.PFLEGO):
    """Measures what it sends: a method's own metrics need no word anywhere else."""

    def client_update(
        self, now: pflego.Round, shared: Weights, state: Weights, problem: Problem
    ) -> pflego.Update:
        update = super().client_update(now, shared, state, problem)
        length = norm(update.contribution)
        own = {
            "length": mean(length, weight=problem.samples),
            "longest": largest(length),
            "numbers": total(sum(tensor.numel() for tensor in update.contribution.values())),
        }
        return replace(update, metrics={**update.metrics, **own})


def test_a_methods_metrics_are_found_in_the_history() -> None:
    twin = world()
    algorithm = Measuring(steps=2, client_lr=0.2)
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=1)
    lengths = []
    for site, W in zip(twin.sites, twin.heads, strict=True):
        dV, dv, _ = gradients(twin.net, W - 0.2 * gradients(twin.net, W, site)[2], site)
        lengths.append(np.sqrt((dV**2).sum() + (dv**2).sum()))
    [row] = run.history
    assert row["length"] == pytest.approx(
        np.average(lengths, weights=[site.n for site in twin.sites]), rel=1e-12
    )
    assert row["longest"] == pytest.approx(max(lengths), rel=1e-12)
    assert row["numbers"] == 5 * (4 * 6 + 4)
    assert row["fallbacks"] == 0


def test_a_metric_that_is_no_number_is_no_result() -> None:
    class Lost(Measuring):
        def client_update(
            self, now: pflego.Round, shared: Weights, state: Weights, problem: Problem
        ) -> pflego.Update:
            update = super().client_update(now, shared, state, problem)
            bad = {"length": mean(float("nan"))} if problem.client.id == "c1" else {}
            return replace(update, metrics={**update.metrics, **bad})

    twin = world()
    run = pflego.train(twin.federation, twin.model, Lost(steps=2, client_lr=0.2), rounds=1)
    [row] = run.history
    assert row["rejected"] == 1
    assert row["numbers"] == 4 * (4 * 6 + 4)
    assert row["length"] is not None
    assert np.isfinite(row["length"])
