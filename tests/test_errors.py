import pickle

import pytest

from pflego import FolderError, UserError
from pflego.errors import check_choice, check_positive, unknown


def test_an_unknown_name_is_answered_with_the_nearest_known_one() -> None:
    assert str(unknown("method", "PFLGO", ["pflego", "local"])) == (
        "unknown method 'PFLGO': did you mean 'pflego'? (known: local, pflego)"
    )


def test_a_name_near_nothing_is_answered_with_all_that_are_known() -> None:
    assert (
        str(unknown("method", "xyz", ["pflego", "local"])) == "unknown method 'xyz': known are local, pflego"
    )


@pytest.mark.parametrize("value", [1e-300, 0.5, 1, 10**400])
def test_finite_numbers_above_zero_are_positive(value: float) -> None:
    check_positive("rate", value)


@pytest.mark.parametrize("value", [0, 0.0, -1, float("inf"), float("nan"), True, "1", None, [1]])
def test_anything_else_is_not(value: object) -> None:
    with pytest.raises(UserError, match="rate must be a number above 0, not"):
        check_positive("rate", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1"])
def test_a_whole_number_is_no_fraction(value: object) -> None:
    check_positive("steps", 1, whole=True)
    with pytest.raises(UserError, match="steps must be a whole number above 0, not"):
        check_positive("steps", value, whole=True)


def test_a_choice_is_one_of_the_choices() -> None:
    check_choice("step", "exact", ["exact", "paper"])
    with pytest.raises(UserError, match="unknown step 'exat': did you mean 'exact'"):
        check_choice("step", "exat", ["exact", "paper"])


def test_a_folder_error_is_caught_as_what_it_is() -> None:
    error = FolderError("cannot write runs/a")
    assert isinstance(error, UserError)
    assert isinstance(error, ValueError)
    assert isinstance(error, OSError)
    assert str(error) == "cannot write runs/a"
    assert str(pickle.loads(pickle.dumps(error))) == "cannot write runs/a"
