import numpy as np
import pytest

from pflego import UserError
from pflego.data.own.encoding import encode, fit, standard
from pflego.data.schema import Feature

pa = pytest.importorskip("pyarrow")


def table(**columns: list[object]) -> object:
    return pa.table(columns)


def test_mean_and_standard_deviation_are_of_the_values_that_are_there() -> None:
    values = np.random.default_rng(0).normal(3, 2, (50, 3))
    values[::7, 1] = np.nan
    mean, scale = standard(values)
    np.testing.assert_allclose(mean, np.nanmean(values, axis=0), rtol=1e-12)
    np.testing.assert_allclose(scale, np.nanstd(values, axis=0), rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 5.0, 0.1, 1e9, np.nan])
def test_a_column_that_never_changes_is_divided_by_one(value: float) -> None:
    assert standard(np.full((7, 1), value))[1].tolist() == [1.0]


def test_only_training_rows_say_how_a_column_is_encoded() -> None:
    columns = table(age=[1.0, 3.0, 100.0], ward=["b", "a", "c"])
    train = np.array([0, 1])
    age = fit("age", columns.column("age"), train, scale=True)  # type: ignore[attr-defined]
    ward = fit("ward", columns.column("ward"), train, scale=True)  # type: ignore[attr-defined]
    assert age == Feature("age", "number", mean=(2.0,), scale=(1.0,))
    assert ward == Feature("ward", "category", categories=("a", "b"))
    assert fit("age", columns.column("age"), train, scale=False).scale == ()  # type: ignore[attr-defined]


def test_rows_become_inputs_in_the_order_of_the_columns() -> None:
    features = [
        Feature("ward", "category", categories=("a", "b")),
        Feature("age", "number", mean=(2.0,), scale=(0.5,)),
        Feature("scan", "number", mean=(1.0, 0.0), scale=(1.0, 10.0)),
    ]
    columns = table(age=[1.0, None, 3.0], ward=["b", "a", "new"], scan=[[1.0, 20.0], [2.0, 0.0], [0.0, 5.0]])
    x = encode(features, columns.column, np.array([2, 0, 1]))  # type: ignore[attr-defined]
    assert x.dtype == np.float32
    assert x.tolist() == [[0, 0, 2, -1, 0.5], [0, 1, -2, 0, 2], [1, 0, 0, 1, 0]]


def test_numbers_that_are_not_scaled_stay_as_they_are_and_gaps_get_the_mean() -> None:
    feature = Feature("age", "number", mean=(2.5,))
    x = encode([feature], table(age=[1.0, None]).column, np.arange(2))  # type: ignore[attr-defined]
    assert x.tolist() == [[1.0], [2.5]]


def test_lists_of_another_length_than_in_training_are_refused() -> None:
    feature = Feature("scan", "number", mean=(1.0, 0.0))
    with pytest.raises(UserError, match="lists of 3 numbers, not of 2"):
        encode([feature], table(scan=[[1.0, 2.0, 3.0]]).column, np.arange(1))  # type: ignore[attr-defined]
