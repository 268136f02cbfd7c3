import pickle
import sys

import pytest

import pflego
from pflego import DataError, FolderError, ModelError, SettingError, UserError, errors
from pflego.cli import main
from pflego.codec import MessageError
from pflego.data.problems import DataProblems
from pflego.engines.peers import PeerError
from pflego.errors import MissingExtraError, UntrustedError, check_choice, check_positive, unknown
from pflego.federation.remote import NotHereError

# What programs may rely on: by which classes an error can be caught. A sentence may change, these may not.
CLASSES: dict[type[UserError], tuple[type[Exception], ...]] = {
    UserError: (ValueError,),
    SettingError: (UserError,),
    DataError: (UserError,),
    ModelError: (UserError,),
    FolderError: (UserError, OSError),
    MissingExtraError: (UserError, ImportError, ModuleNotFoundError),
    UntrustedError: (UserError,),
    MessageError: (UserError,),
    NotHereError: (DataError,),
    PeerError: (UserError,),
    DataProblems: (DataError,),
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_is_caught_as_what_it_is(kind: type[UserError]) -> None:
    assert issubclass(kind, UserError)
    assert all(issubclass(kind, wanted) for wanted in CLASSES[kind])
    kin = {other for other in CLASSES if issubclass(kind, other)}
    assert kin == {kind, UserError, *(c for c in CLASSES[kind] if c in CLASSES)}


def test_every_class_of_errors_has_its_place_here() -> None:
    own = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert own <= CLASSES.keys()


@pytest.mark.parametrize(
    "name",
    [
        "DataError",
        "FolderError",
        "MissingExtraError",
        "ModelError",
        "SettingError",
        "UntrustedError",
        "UserError",
    ],
)
def test_they_are_found_at_the_front_door(name: str) -> None:
    assert getattr(pflego, name) is getattr(errors, name)


@pytest.mark.parametrize(
    "kind", [k for k in CLASSES if k is not DataProblems], ids=lambda kind: kind.__name__
)
def test_a_message_is_one_sentence_and_survives_a_process(kind: type[UserError]) -> None:
    error = kind("cannot write runs/a")
    assert str(error) == "cannot write runs/a"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (kind, "cannot write runs/a")


@pytest.mark.parametrize(
    "words",
    [
        ["--rounds", "0"],
        ["--steps", "x"],
        ["--algorithm", "pflgo"],
        ["no-such-file.toml"],
        ["--data", "no-such-data"],
    ],
    ids=lambda words: words[0],
)
def test_the_command_line_gives_one_line_and_status_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pflego", "run", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_all_that_is_wrong_with_data_survives_a_process() -> None:
    again = pickle.loads(pickle.dumps(DataProblems(["no labels", "no clients"])))
    assert isinstance(again, DataProblems)
    assert str(again) == "no labels (and 1 more: pflego data check)"
    assert again.problems == ("no labels", "no clients")


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
    with pytest.raises(SettingError, match="rate must be a number above 0, not"):
        check_positive("rate", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1"])
def test_a_whole_number_is_no_fraction(value: object) -> None:
    check_positive("steps", 1, whole=True)
    with pytest.raises(SettingError, match="steps must be a whole number above 0, not"):
        check_positive("steps", value, whole=True)


def test_a_choice_is_one_of_the_choices() -> None:
    check_choice("step", "exact", ["exact", "paper"])
    with pytest.raises(SettingError, match="unknown step 'exat': did you mean 'exact'"):
        check_choice("step", "exat", ["exact", "paper"])


def test_an_unknown_name_is_a_setting_that_is_wrong() -> None:
    assert type(unknown("method", "x", ["y"])) is SettingError
