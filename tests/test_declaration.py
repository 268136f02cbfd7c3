"""Settings that are declared once: what is read from signatures, and what is refused at the door."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pflego import SettingError
from pflego.algorithms.registry import methods
from pflego.data import load
from pflego.declaration import (
    AutoRate,
    Count,
    Declared,
    InPython,
    Limits,
    MayChange,
    OneOf,
    Positive,
    Probability,
    Reads,
    Simulated,
    Spelled,
    Whole,
    arguments,
    check_arguments,
    check_fields,
    declared,
    load_object,
)
from pflego.settings.tables import DataChoice, MethodChoice, ModelChoice, Tracking
from pflego.training.train import train


@dataclass(frozen=True)
class Radio:
    """How it is sent.

    Parameters
    ----------
    power
        Watts. More than one is a lot.
    spread
        Of the power.
    """

    power: Annotated[Positive, Simulated] = 2.0
    spread: Annotated[float, Limits(least=0, most=5), Spelled("radio_spread")] = 0.5

    def __post_init__(self) -> None:
        check_fields(self)


def work(
    data: object,
    *,
    rounds: Annotated[Whole, MayChange],
    every: Count | None = None,
    rule: Literal["gd", "adam"] = "gd",
    optimizer: Annotated[str, OneOf(("sgd", "rprop"))] = "sgd",
    rate: AutoRate = "auto",
    share: Probability = 0.5,
    names: Sequence[str] | None = None,
    place: str | Path | None = None,
    exact: bool = False,
    device: str | torch.device = "auto",
    start: Literal["zeros"] | Callable[[int], float] = "zeros",
    who: Annotated[int | str, Reads(str)] = 3,
    radio: Radio = Radio(),  # as `train` has it
    hidden: Annotated[int, InPython] = 0,
) -> None:
    """Work.

    Parameters
    ----------
    data
        What on.
    rounds
        How many. Until the
        end.
    rule, optimizer
        How steps are taken.

    Notes
    -----
    exact
        Is not explained here.
    """


SETTINGS = declared(work)


def test_what_is_keyword_only_is_a_setting_unless_only_python_can_give_it() -> None:
    assert list(SETTINGS) == [
        "rounds", "every", "rule", "optimizer", "rate", "share", "names", "place", "exact", "device", "start",
        "who", "power", "radio_spread",
    ]  # fmt: skip


def test_a_signature_says_what_a_setting_is() -> None:
    rounds, every, rate = SETTINGS["rounds"], SETTINGS["every"], SETTINGS["rate"]
    assert (rounds.kinds, rounds.limits, rounds.default) == ((int,), Limits(above=0), MISSING)
    assert (rounds.may_change, rounds.optional, rounds.tuned) == (True, False, False)
    assert (every.kinds, every.limits, every.default) == ((int,), Limits(least=0), None)
    assert (every.may_change, every.optional) == (False, True)
    assert (rate.kinds, rate.choices, rate.tuned) == ((float,), ("auto",), True)
    assert (SETTINGS["rule"].kinds, SETTINGS["rule"].choices) == ((), ("gd", "adam"))
    assert (SETTINGS["optimizer"].kinds, SETTINGS["optimizer"].choices) == ((), ("sgd", "rprop"))
    assert (SETTINGS["start"].choices, SETTINGS["start"].any_function) == (("zeros",), True)
    assert [name for name, one in SETTINGS.items() if one.listed] == ["names"]
    assert [name for name, one in SETTINGS.items() if one.read] == ["who"]


def test_a_dataclass_stands_for_its_fields_by_the_names_of_files() -> None:
    power, spread = SETTINGS["power"], SETTINGS["radio_spread"]
    assert (power.parameter, power.default, power.simulated) == ("power", 2.0, True)
    assert (spread.parameter, spread.default, spread.simulated) == ("spread", 0.5, False)
    assert declared(Radio) == {"power": power, "radio_spread": spread}


def test_the_docstring_says_what_a_setting_is_for() -> None:
    assert SETTINGS["rounds"].help == "How many. Until the end."
    assert SETTINGS["rounds"].summary == "How many."
    assert SETTINGS["rule"].help == SETTINGS["optimizer"].help == "How steps are taken."
    assert SETTINGS["power"].help == "Watts. More than one is a lot."
    assert SETTINGS["exact"].help == ""  # another section is none of settings


def test_a_subclass_inherits_words_and_may_say_others() -> None:
    @dataclass(frozen=True)
    class Louder(Radio):
        """Louder.

        Parameters
        ----------
        power
            Many watts.
        """

    assert declared(Louder)["power"].help == "Many watts."
    assert declared(Louder)["radio_spread"].help == "Of the power."


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rounds", [1, 2**63 - 1, np.int64(3)]),
        ("every", [0, 7, None]),
        ("rule", ["gd", "adam"]),
        ("optimizer", ["rprop"]),
        ("rate", ["auto", 0.1, 1, np.float32(0.5), 1e-300]),
        ("share", [0, 0.0, 0.999]),
        ("names", [[], ["a", "b"], ("a",), None]),
        ("place", ["here", Path("here"), None]),
        ("exact", [True, False]),
        ("device", ["cpu", torch.device("cpu")]),
        ("start", ["zeros", float, lambda rows: 0.0]),
        ("who", [3, "everyone", object()]),  # what reads it refuses it
        ("radio_spread", [0, 5]),
    ],
)
def test_what_was_declared_is_taken(name: str, values: list[object]) -> None:
    for value in values:
        SETTINGS[name].check(value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rounds", [0, -1, 1.0, True, "1", None, np.float64(1), np.int64(0), -(10**400), 2**63, inf]),
        ("every", [-1, False, 0.5, "0"]),
        ("rule", ["sgd", "", 1, None, True]),
        ("optimizer", ["adm", None, 2]),
        ("rate", ["automatic", 0, -0.1, nan, inf, True, None, [0.1], 10**400, 1e39, 1 + 0j]),
        ("share", [1, 1.0, -1e-300, nan, "0.5", False]),
        ("names", ["a", [1], 3, {"a": 1}, {"a"}]),
        ("place", [1, True, b"here", ["here"], "he\0re", nan]),
        ("exact", [1, 0, "true", None]),
        ("device", [0, None, torch.float32]),
        ("start", ["ones", 0, None]),
        ("radio_spread", [-0.1, 5.1]),
    ],
)
def test_everything_else_is_refused_by_name(name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(SettingError, match=name):
            SETTINGS[name].check(value)


def test_a_refusal_says_what_may_be() -> None:
    for name, value, words in [
        ("rounds", 0, "rounds must be a whole number above 0, not 0"),
        ("rate", "x", "rate must be a number above 0 or auto, not 'x'"),
        ("radio_spread", 6, "radio_spread must be a number at least 0 and at most 5, not 6"),
        ("place", 1, "place must be a text or a path, not 1"),
        ("rule", "adm", "unknown rule 'adm': did you mean 'adam'"),
    ]:
        with pytest.raises(SettingError, match=words):
            SETTINGS[name].check(value)


limits = st.builds(Limits, *[st.none() | st.integers(-9, 9) | st.floats(-9, 9)] * 4)


@given(limits, st.integers() | st.floats(allow_nan=False))
def test_limits_are_kept_on_both_sides(ends: Limits, value: float) -> None:
    above, least = (-inf if end is None else end for end in (ends.above, ends.least))
    below, most = (inf if end is None else end for end in (ends.below, ends.most))
    low = ends.above is None or not value <= above
    high = ends.below is None or not value >= below
    assert ends.hold(value) == (low and high and least <= value <= most)


def number(kind: type, limits: Limits = Limits()) -> Declared:  # noqa: B008 - frozen
    """Declare a number."""

    def owner(*, value: Any) -> None: ...

    owner.__annotations__["value"] = Annotated[kind, limits]
    return declared(owner)["value"]


@given(st.integers(-(2**63) + 1, 2**63 - 1), limits)
def test_a_whole_number_is_taken_where_its_limits_hold(value: int, ends: Limits) -> None:
    one = number(int, ends)
    if ends.hold(value):
        one.check(value)
        assert one.parse(str(value)) == value
    else:
        with pytest.raises(SettingError):
            one.check(value)


@given(st.floats())
def test_a_number_that_is_spelled_and_read_is_the_same_if_it_is_one(value: float) -> None:
    one = number(float)
    if abs(value) <= 3.4e38:  # what weights of 32 bits can be multiplied by
        one.check(value)
        assert one.parse(repr(value)) == value
    else:
        with pytest.raises(SettingError):
            one.check(one.parse(repr(value)))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rounds", "12", 12),
        ("rate", "0.5", 0.5),
        ("rate", "auto", "auto"),
        ("rate", "3", 3.0),
        ("exact", "True", True),
        ("exact", "false", False),
        ("rule", "adam", "adam"),
        ("place", "3", "3"),
        ("device", "cuda:0", "cuda:0"),
        ("who", "5", 5),
        ("who", "everyone", "everyone"),
    ],
)
def test_a_text_of_the_command_line_is_read_as_what_was_declared(name: str, text: str, value: object) -> None:
    read = SETTINGS[name].parse(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rounds", "1.5"),
        ("rounds", "many"),
        ("rate", "fast"),
        ("exact", "yes"),
        ("rule", "sgd"),
        ("rule", ""),
    ],
)
def test_a_text_that_cannot_be_read_so_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingError, match=name):
        SETTINGS[name].parse(text)


def test_fields_are_checked_when_they_are_given() -> None:
    with pytest.raises(SettingError, match="power must be a number above 0, not 0"):
        Radio(power=0)
    with pytest.raises(SettingError, match="radio_spread"):
        Radio(spread=9)


def test_a_dataclass_in_a_field_has_checked_itself() -> None:
    @dataclass(frozen=True)
    class Station:
        radio: Radio
        name: str = "a"

    check_fields(Station(Radio()))
    with pytest.raises(SettingError, match="name must be a text"):
        check_fields(Station(Radio(), name=3))  # type: ignore[arg-type]


def test_arguments_are_checked_by_the_names_of_parameters() -> None:
    check_arguments(work, {"rounds": 3, "hidden": "anything", "spread": 0.5, "other": None})
    with pytest.raises(SettingError, match="radio_spread"):
        check_arguments(work, {"rounds": 3, "spread": -1})


def test_settings_become_arguments_and_those_of_others_are_left_alone() -> None:
    given = {"rounds": 3, "rule": "adam", "radio_spread": 0.25, "steps": 7, "hidden": 4, "data": "digits"}
    assert arguments(work, given) == {"rounds": 3, "rule": "adam", "radio": Radio(spread=0.25)}
    assert arguments(Radio, given) == {"spread": 0.25}
    assert arguments(work, {}) == {}


def test_a_factorys_default_is_its_first_product() -> None:
    @dataclass(frozen=True)
    class Bag:
        things: list[str] = field(default_factory=lambda: ["a"])
        made: int = field(default=3, init=False)

    assert {name: one.default for name, one in declared(Bag).items()} == {"things": ["a"]}


def test_an_object_is_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guest_of_declaration.py").write_text("class Outer:\n    class Inner:\n        value = 3\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert load_object("guest_of_declaration:Outer.Inner.value", "model") == 3
    assert load_object("math:pi", "model") == pytest.approx(3.14159265)
    assert sys.path == before
    del sys.modules["guest_of_declaration"]


@pytest.mark.parametrize("text", ["no_such_module:Name", "math:no_such_name", "math:", ":Name", "math"])
def test_an_object_that_is_not_there_is_refused(text: str) -> None:
    before = list(sys.path)
    with pytest.raises(SettingError, match=r"model .* it must be module:Name"):
        load_object(text, "model")
    assert sys.path == before


def test_code_of_somebody_elses_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_when_imported.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="'fails_when_imported:Name': division by zero"):
        load_object("fails_when_imported:Name", "model")


OWNERS: list[Callable[..., object]] = [load, train, DataChoice, ModelChoice, MethodChoice, Tracking]


@pytest.mark.parametrize("owner", [*OWNERS, *methods().values()], ids=lambda owner: owner.__name__)
def test_every_setting_of_the_package_says_what_it_is_for(owner: Callable[..., object]) -> None:
    assert [name for name, one in declared(owner).items() if not one.help] == []
    unusable = [n for n, one in declared(owner).items() if not (one.kinds or one.choices or one.read)]
    assert unusable == []


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.__name__)
def test_every_default_is_what_it_may_be(owner: Callable[..., object]) -> None:
    for one in declared(owner).values():
        if one.default is not MISSING:
            one.check(one.default)


@pytest.mark.parametrize("kind", methods().values(), ids=list(methods()))
def test_a_method_that_is_given_its_own_settings_is_the_same(kind: Any) -> None:
    made = kind()
    own = made.settings()
    assert own.keys() == declared(kind).keys()
    for name, one in declared(kind).items():
        one.check(own[name])
    assert kind(**arguments(kind, own)) == made
