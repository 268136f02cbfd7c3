"""What is tried: for each hyperparameter a range of numbers, or a list of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

from pflego.algorithms.base import Algorithm
from pflego.declaration import Declared
from pflego.errors import SettingError, UserError
from pflego.report.words import significant
from pflego.settings.tables import Settings, known

Value: TypeAlias = bool | int | float | str

FIXED_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # tried beside those that clients measure
_AROUND = 100  # a rate is looked for between a hundredth of what it is and a hundred times that
_BESIDES = {"model", "participation"}  # what can be tried besides a method's own settings
_FORMS = "low:high, low:high:log, or several values a,b,c"


@dataclass(frozen=True)
class Range:
    """Numbers between two, whole if both are.

    Parameters
    ----------
    low, high
        The ends, which may be tried themselves.
    log
        Try as many between 0.001 and 0.01 as between 0.01 and 0.1.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        numbers = [
            isinstance(end, int | float) and not isinstance(end, bool) for end in (self.low, self.high)
        ]
        if not all(numbers) or not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise SettingError(
                f"a range goes from a number to a larger one, not from {self.low!r} to {self.high!r}"
            )
        if self.log and self.low <= 0:
            raise SettingError(f"a range on a logarithmic scale begins above 0, not at {self.low!r}")

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are tried."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Space: TypeAlias = Range | Sequence[Value]
Spaces: TypeAlias = dict[str, Range | list[Value]]


def read(text: str) -> tuple[str, Range | list[Value]]:
    """Read what the command line says of one hyperparameter.

    >>> read("server_lr=1e-4:1e-1:log")
    ('server_lr', Range(low=0.0001, high=0.1, log=True))
    >>> read("client-lr=auto,0.01"), read("steps=5:100")
    (('client_lr', ['auto', 0.01]), ('steps', Range(low=5, high=100, log=False)))
    """
    name, equals, said = text.partition("=")
    name = name.strip().replace("-", "_")
    if not (name and equals):
        raise SettingError(
            f"{text!r} does not say what to try: name=low:high, name=low:high:log or name=a,b,c"
        )
    if "," in said:
        values = list(dict.fromkeys(_value(word.strip()) for word in said.split(",") if word.strip()))
        if len(values) > 1:
            return name, values
    match [_value(word.strip()) for word in said.split(":")]:
        case [int() | float() as low, int() | float() as high]:
            return name, Range(low, high)
        case [int() | float() as low, int() | float() as high, "log"]:
            return name, Range(low, high, log=True)
    raise SettingError(f"{name}={said} is nothing to choose from: give {_FORMS}")


def _value(word: str) -> Value:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def usual(algorithm: Algorithm) -> Spaces:
    """Return the usual space of a method: its rates, a hundredfold to each side, or fixed ones beside measured ones.

    >>> import pflego
    >>> usual(pflego.FedAvg(client_lr=0.03))
    {'client_lr': Range(low=0.0003, high=3.0, log=True)}
    >>> usual(pflego.FedAvg())
    {'client_lr': ['auto', 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]}
    """
    spaces: Spaces = {}
    for name, one in fields_of(type(algorithm)).items():
        value = getattr(algorithm, one.parameter)
        if one.tuned and isinstance(value, str):
            spaces[name] = [*one.choices, 0.001, *FIXED_RATES, 3.0]
        elif one.tuned and isinstance(value, int | float) and value > 0:
            spaces[name] = Range(significant(value / _AROUND, 6), significant(value * _AROUND, 6), log=True)
    return spaces


def fields_of(kind: type[Algorithm]) -> dict[str, Declared]:
    """Give the settings of a method by their names on the command line."""
    return {name: one for name, one in known("method", kind).items() if name not in known("method")}


def resolve(settings: Mapping[str, object], over: Mapping[str, Space]) -> Spaces:
    """Refuse what cannot be tried, before anything is; give what can, numbers that need not be whole as such."""
    own = fields_of(Settings.of(settings).kind)
    spaces: Spaces = {}
    for name, space in over.items():
        if isinstance(space, Range):
            rational = name in own and float in own[name].kinds
            spaces[name] = Range(float(space.low), float(space.high), log=space.log) if rational else space
        elif isinstance(space, str) or len(space) < 2:
            raise SettingError(
                f"{name}={space} is nothing to choose from: give a Range, or a list of several values"
            )
        else:
            spaces[name] = list(space)
    for name, space in spaces.items():
        for value in ends(space):
            _check_value(name, value, settings, spaces)
        if name not in own.keys() | _BESIDES:
            raise SettingError(f"{name} must be the same in all trials, or they could not be compared")
    return spaces


def _check_value(name: str, value: Value, settings: Mapping[str, object], spaces: Spaces) -> None:
    """Refuse a value that goes neither with the settings as they are nor with the ends of the other spaces."""
    first, last = ({other: list(ends(space))[k] for other, space in spaces.items()} for k in (0, -1))
    refused = None
    for others in ({}, first, last):
        try:
            Settings.of({**settings, **others, name: value})
        except UserError as error:
            refused = refused or error
        else:
            return
    if refused is not None:
        raise refused


def ends(space: Range | list[Value]) -> Iterable[Value]:
    """Return the ends of a range, or all values of a list."""
    return (space.low, space.high) if isinstance(space, Range) else space


def holds(space: Range | list[Value], value: object) -> bool:
    """Tell whether a value is among those tried."""
    if isinstance(space, Range):
        return isinstance(value, int | float) and space.low <= value <= space.high
    return value in space


def words(space: Range | list[Value]) -> str:
    """Spell a space as the command line does.

    >>> words(Range(5, 100, log=True)), words(["auto", 0.01])
    ('5:100:log', 'auto,0.01')
    """
    if isinstance(space, Range):
        return f"{space.low}:{space.high}{':log' if space.log else ''}"
    return ",".join(str(value) for value in space)
