import numpy as np
import pytest

from pflego import UserError
from pflego.data.own.classes import Labels, labels, numbered, suspect
from pflego.data.problems import DataWarning

pa = pytest.importorskip("pyarrow")


def of(values: list[object], task: str | None = None, names: tuple[str, ...] = ()) -> Labels:
    return labels("y", pa.chunked_array([pa.array(values)]), task, names=names)


@pytest.mark.parametrize(
    ("values", "names", "ids"),
    [
        (["yes", "no", "yes"], ("no", "yes"), [1, 0, 1]),
        ([10, 9, -1], ("-1", "9", "10"), [2, 1, 0]),
        ([True, False], ("false", "true"), [1, 0]),
    ],
)
def test_texts_whole_numbers_and_truth_values_are_classes_in_their_order(
    values: list[object], names: tuple[str, ...], ids: list[int]
) -> None:
    found = of(values)
    assert (found.task, found.names, found.values.tolist()) == ("classification", names, ids)
    assert found.kinds.tolist() == ids


def test_fractions_are_numbers_to_predict() -> None:
    found = of([1.5, 2.0])
    assert (found.task, found.names, found.values.tolist()) == ("regression", (), [1.5, 2.0])
    assert found.kinds.tolist() == [0, 0]


def test_a_task_that_is_named_decides() -> None:
    assert of([1, 3], "regression").values.tolist() == [1.0, 3.0]
    assert of([1, 3], "regression").task == "regression"
    found = of([2.0, 0.5, 2.0], "classification")
    assert (found.names, found.values.tolist()) == (("0.5", "2"), [1, 0, 1])


def test_texts_cannot_be_a_regression() -> None:
    with pytest.raises(UserError, match="label column 'y' holds texts: a regression needs numbers"):
        of(["a"], "regression")


@pytest.mark.parametrize(
    ("values", "names", "ids"),
    [
        (["b", "new", "a"], ("b", "a"), [0, 2, 1]),
        ([7, 8], ("7",), [0, 1]),
        ([7.0], ("5", "7"), [1]),
        (["7"], ("5", "7"), [1]),
    ],
)
def test_classes_that_are_known_keep_their_numbers_and_others_come_after_the_last(
    values: list[object], names: tuple[str, ...], ids: list[int]
) -> None:
    assert of(values, "classification", names).values.tolist() == ids


@pytest.mark.parametrize(
    ("values", "reason"), [([[1.0, 2.0]], "holds lists"), ([{"bytes": b"", "path": ""}], "holds pictures")]
)
def test_a_label_is_one_value(values: list[object], reason: str) -> None:
    with pytest.raises(UserError, match=f"label column 'y' {reason}"):
        of(values)


def test_arrays_are_numbered_by_the_same_rules() -> None:
    assert numbered(np.array(["b", "a"]))[1] == ("a", "b")
    codes, names = numbered(np.array([True, False, True]))
    assert (codes.tolist(), names) == ([1, 0, 1], ("false", "true"))
    assert numbered(np.array([3, 9]), ("9", "3"))[0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.0, 1.0, 1.0], "2 different whole numbers written as fractions.*task='classification'"),
        (list(range(50)), "50 classes in 50 rows: for a regression say task='regression'"),
        ([f"t{k}" for k in range(50)], "50 classes in 50 rows: is it the label"),
        (["a", "a"], "one class alone, 'a'"),
    ],
)
def test_labels_that_look_like_something_else_earn_a_warning(values: list[object], words: str) -> None:
    with pytest.warns(DataWarning, match=words):
        suspect(of(values), "y")


@pytest.mark.parametrize("values", [[0.5, 1.0], [0, 1, 1], [0.0, *map(float, range(30))]])
def test_others_do_not(values: list[object]) -> None:
    suspect(of(values), "y")
