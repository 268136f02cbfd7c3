from datetime import date
from decimal import Decimal

import numpy as np
import pytest

from pflego import UserError
from pflego.data.own.columns import Words, integers, kind_of, missing, numbers, words

pa = pytest.importorskip("pyarrow")


def column(*chunks: list[object], type: object = None) -> object:
    return pa.chunked_array([pa.array(chunk, type=type) for chunk in chunks], type=type)


def test_words_are_positions_in_sorted_names_and_blanks_do_not_count() -> None:
    found = words(column(["b ", " a", None], ["", "c", "a"], type=pa.string()))
    assert found.names == ("a", "b", "c")
    assert found.codes.tolist() == [1, 0, -1, -1, 2, 0]


@pytest.mark.parametrize("values", [["x", "y", "x"], [True, False, True]])
def test_dictionaries_and_truth_values_are_words(values: list[object]) -> None:
    plain = words(column(values))
    assert plain.names == (("x", "y") if values[0] == "x" else ("false", "true"))
    coded = words(column(values).dictionary_encode())  # type: ignore[attr-defined]
    assert (coded.names, coded.codes.tolist()) == (plain.names, plain.codes.tolist())


def test_a_column_without_rows_has_no_words() -> None:
    found = words(pa.chunked_array([], type=pa.string()))
    assert (found.names, len(found.codes)) == ((), 0)


def test_words_can_be_told_by_other_names() -> None:
    found = Words(np.array([0, 1, 2, -1]), ("a", "b", "c"))
    assert found.among(("c", "a")).tolist() == [1, -1, 0, -1]
    assert Words(np.array([0, 1]), ("False", "TRUE")).among(("false", "true")).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, None, 3], [[1], [np.nan], [3]]),
        ([0.5, float("nan")], [[0.5], [np.nan]]),
        ([Decimal("1.25"), None], [[1.25], [np.nan]]),
        ([[1.0, 2.0], [3.0, None]], [[1, 2], [3, np.nan]]),
        ([[1.0, 2.0], None, [3.0, 4.0]], [[1, 2], [np.nan, np.nan], [3, 4]]),
        ([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ([None, None], [[np.nan], [np.nan]]),
    ],
    ids=["whole", "fractions", "decimals", "lists", "a list missing", "lists of lists", "nothing"],
)
def test_numbers_are_a_row_a_sample(values: list[object], wanted: list[list[float]]) -> None:
    np.testing.assert_array_equal(numbers(column(values)), wanted)
    assert missing(column(values)).tolist() == np.isnan(wanted).any(axis=1).tolist()


def test_lists_must_be_of_one_length() -> None:
    with pytest.raises(UserError, match="lists of different lengths"):
        numbers(column([[1.0], [2.0, 3.0]]))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (["a", " ", None, ""], [False, True, True, True]),
        ([True, None], [False, True]),
        ([[1.0], None, [2.0, None]], [False, True, True]),
    ],
)
def test_a_blank_text_is_missing_too(values: list[object], wanted: list[bool]) -> None:
    assert missing(column(values)).tolist() == wanted


def test_whole_numbers_are_exact_however_large() -> None:
    for values in ([2**60 + 1], [2.0, 3.0]):
        found = integers(column([*values]))
        assert found is not None
        assert found.tolist() == values
    assert integers(column([0.5])) is None
    assert integers(column(["1"])) is None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1], "number"),
        ([0.5], "number"),
        ([[1.0]], "number"),
        ([None], "number"),
        ([True], "category"),
        (["a"], "category"),
        ([{"bytes": b"", "path": "a.png"}], "image"),
        ([date(2020, 1, 1)], "dates or times"),
        ([b"\xe9"], "is not UTF-8"),
        ([["a"]], "lists of string"),
        ([{"a": 1}], "values of type struct"),
    ],
)
def test_a_column_says_what_it_can_be_or_why_it_cannot(values: list[object], kind: str) -> None:
    assert kind in kind_of(column(values))
