"""Settings, declared once: what a dataclass's fields or a function's parameters may be.

A type says what a value is and, by `Limits`, where it may lie; the default stands in the signature, and the words in
the numpy-style docstring. Everything else is made from that: checks, options of the command line and their help, the
tables of settings files, what Flower's configuration may hold, what may change when a run is resumed.

>>> def train(*, rounds: Annotated[int, Limits(above=0)], missing: Literal["zero", "renormalise"] = "zero") -> None:
...     '''Train.
...
...     Parameters
...     ----------
...     rounds
...         How many rounds there are.
...     '''
>>> declared(train)["rounds"].help, declared(train)["missing"].choices
('How many rounds there are.', ('zero', 'renormalise'))
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Callable as AbstractCallable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module, invalidate_caches
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from pflego.errors import SettingError, UntrustedError, is_path, shortened, unknown

_may_load_code = ContextVar("may_load_code", default=True)


@dataclass(frozen=True)
class Limits:
    """Where a number may lie."""

    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None

    def hold(self, value: float) -> bool:
        """Tell whether a number keeps them."""
        return (
            (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.below is None or value < self.below)
            and (self.most is None or value <= self.most)
        )

    def __str__(self) -> str:
        ends = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        return " and ".join(f"{words} {end:g}" for words, end in ends.items() if end is not None)


@dataclass(frozen=True)
class OneOf:
    """The words that a text may be, where they are not known to a type checker."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Spelled:
    """The name of a setting in files and on the command line, where it is not the parameter's own."""

    name: str


@dataclass(frozen=True)
class Reads:
    """How the text of a setting becomes an object, for types that have no literal form."""

    read: Callable[[Any], object]


class MayChange:
    """A setting that may differ when a run is resumed."""


class Simulated:
    """A setting that only simulations have: with real clients it is as it is."""


class Tuned:
    """A setting that `pflego tune` looks for if it is not told what to."""


class InPython:
    """A parameter that only Python can give: it is no setting."""


_LARGEST_INT = 2**63 - 1  # of 64 bits
_LARGEST_FLOAT = 3.4e38  # of 32 bits, in which weights are multiplied by it

Whole: TypeAlias = Annotated[int, Limits(above=0)]
Count: TypeAlias = Annotated[int, Limits(least=0)]
Positive: TypeAlias = Annotated[float, Limits(above=0)]
NotNegative: TypeAlias = Annotated[float, Limits(least=0)]
LearningRate: TypeAlias = Annotated[float, Limits(above=0), Tuned]
AutoRate: TypeAlias = Annotated[float | Literal["auto"], Limits(above=0), Tuned]
HeadRate: TypeAlias = Annotated[float | Literal["centred", "auto"], Limits(above=0), Tuned]
Strength: TypeAlias = Annotated[float, Limits(least=0), Tuned]
Probability: TypeAlias = Annotated[float, Limits(least=0, below=1)]


@dataclass(frozen=True)
class Declared:
    """One setting: its name, what it may be, what it is if not given, and what it is for."""

    name: str  # in files and on the command line
    parameter: str  # in Python
    kinds: tuple[type, ...]  # of values: bool, int, float, str, Path, list; none where `read` makes an object
    choices: tuple[str, ...]  # the words it may be
    limits: Limits
    default: object  # MISSING: it must be given
    help: str
    optional: bool  # whether it may be None
    may_change: bool
    simulated: bool
    tuned: bool
    any_function: bool  # whether Python may give a function instead
    objects: tuple[type, ...]  # of which Python may give one instead
    read: Callable[[Any], object] | None

    @property
    def summary(self) -> str:
        """The first sentence of what it is for."""
        return re.split(r"(?<=[.?!]) ", self.help, maxsplit=1)[0]

    @property
    def listed(self) -> bool:
        """Whether it is a list, given one by one on the command line."""
        return list in self.kinds

    def check(self, value: object) -> None:
        """Refuse a value that is not what was declared."""
        if (value is None and self.optional) or (self.any_function and callable(value)):
            return
        if isinstance(value, self.objects):
            return
        if self.read is not None or (isinstance(value, str) and value in self.choices):
            return
        if not self.kinds:
            raise unknown(self.name, str(value), self.choices)
        if not self._fits(value):
            raise SettingError(f"{self.name} must be {self.wanted()}, not {shortened(value)}")

    def parse(self, text: str) -> object:
        """Read a value as the command line spells it; of a list, one of its texts."""
        if text in self.choices or (self.read is not None and not self.kinds):
            return text
        for kind in (int, float):
            if kind in self.kinds:
                try:
                    return kind(text)
                except ValueError:
                    continue
        if bool in self.kinds and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if {str, Path, list} & {*self.kinds}:
            return text
        if not self.kinds:
            raise unknown(self.name, text, self.choices)
        raise SettingError(f"{self.name} must be {self.wanted()}, not {text!r}")

    def _fits(self, value: object) -> bool:
        if isinstance(value, bool):
            return bool in self.kinds
        if int in self.kinds and isinstance(value, int):
            counts = self.limits != Limits()  # others, such as a seed, may have any length
            return (not counts or abs(value) <= _LARGEST_INT) and self.limits.hold(value)
        if (int in self.kinds and isinstance(value, Integral)) or (
            float in self.kinds and isinstance(value, Real)
        ):
            try:
                number = float(value)
            except OverflowError:
                return False
            return abs(number) <= _LARGEST_FLOAT and self.limits.hold(number)
        if list in self.kinds and isinstance(value, Sequence) and not isinstance(value, str):
            return all(isinstance(one, str) for one in value)
        texts = tuple(kind for kind in self.kinds if kind in (str, Path))
        return bool(texts) and isinstance(value, (str, Path)) and is_path(str(value))

    def wanted(self) -> str:
        """Say what a value may be, in words."""
        words = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            str: "a text",
            Path: "a path",
            list: "a list of texts",
        }
        number = " ".join([words[float if float in self.kinds else int], str(self.limits)]).strip()
        named = [number] if {int, float} & {*self.kinds} else []
        named += [words[kind] for kind in self.kinds if kind not in (int, float)]
        return " or ".join([*dict.fromkeys(named), *self.choices])


@cache
def declared(owner: Callable[..., object]) -> Mapping[str, Declared]:
    """Give the settings that a dataclass or a function declares, by their names.

    A parameter that is itself a dataclass stands for its fields. What is positional, or `InPython`, is no setting.
    """
    hints = get_type_hints(owner, include_extras=True)
    help_text = _documented(owner)
    found: dict[str, Declared] = {}
    for name, default in _parameters(owner):
        hint = hints.get(name, Any)
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if isinstance(kind, type) and is_dataclass(kind):
            found |= declared(kind)
        elif (one := _one(name, hint, default, help_text.get(name, ""))) is not None:
            found[one.name] = one
    return found


def check_fields(settings: object) -> None:
    """Refuse values of a dataclass's fields that are not what they were declared to be."""
    own = {field.name: getattr(settings, field.name) for field in fields(settings)}  # type: ignore[arg-type]
    check_arguments(type(settings), own)


def check_arguments(owner: Callable[..., object], given: Mapping[str, object]) -> None:
    """Refuse arguments of a function, by the names of its parameters, that are not what it declares."""
    for name, kind in _groups(owner).items():  # what is in one of them, it has checked itself
        if name in given and not isinstance(given[name], kind):
            raise SettingError(f"{name} must be a {kind.__name__}(...), not {given[name]!r}")
    for one in declared(owner).values():
        if one.parameter in given:
            one.check(given[one.parameter])


def arguments(owner: Callable[..., object], settings: Mapping[str, object]) -> dict[str, Any]:
    """Give the arguments of a function, or of a dataclass, that settings stand for.

    Settings that are not the owner's are left alone; those of a dataclass in a parameter are put into one.
    """
    groups = _groups(owner)
    inside = {name for kind in groups.values() for name in declared(kind)}
    own = [one for one in declared(owner).values() if one.name not in inside]
    found: dict[str, Any] = {one.parameter: settings[one.name] for one in own if one.name in settings}
    for name, kind in groups.items():
        if inner := arguments(kind, settings):
            found[name] = kind(**inner)
    return found


@contextmanager
def opening(*, trust: bool) -> Iterator[None]:
    """Refuse to load code by name in this context, unless trusted: what is opened may be somebody else's.

    >>> with opening(trust=False):
    ...     load_object("subprocess:Popen", "model")
    Traceback (most recent call last):
    pflego.errors.UntrustedError: model 'subprocess:Popen' is code: ...
    """
    token = _may_load_code.set(trust)
    try:
        yield
    finally:
        _may_load_code.reset(token)


def check_trusted(what: str) -> None:
    """Refuse code in what is being opened, unless somebody said that it may be trusted."""
    if not _may_load_code.get():
        raise UntrustedError(
            f"{what} is code: it is loaded only if you know who made it and say so, with --trust or trust=True"
        )


@cache
def _groups(owner: Callable[..., object]) -> Mapping[str, type]:
    """Map parameter to its class, of those that are dataclasses and stand for their fields."""
    hints = get_type_hints(owner)
    return {
        name: kind
        for name, _ in _parameters(owner)
        if isinstance(kind := hints.get(name), type) and is_dataclass(kind)
    }


def load_object(text: str, what: str) -> object:
    """Give what module:Name names; the module is looked for in the working folder too."""
    check_trusted(f"{what} {text!r}")
    place, _, name = text.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    invalidate_caches()  # the module may have been written a moment ago
    try:
        found = import_module(place)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever somebody else's code does
        raise SettingError(
            f"{what} {text!r}: {error}; it must be module:Name, importable from here"
        ) from error
    finally:
        sys.path.pop(0)
    return found


def _parameters(owner: Callable[..., object]) -> list[tuple[str, object]]:
    if isinstance(owner, type) and is_dataclass(owner):
        return [
            (field.name, field.default if field.default_factory is MISSING else field.default_factory())
            for field in fields(owner)
            if field.init
        ]
    return [
        (one.name, MISSING if one.default is one.empty else one.default)
        for one in inspect.signature(owner).parameters.values()
        if one.kind is one.KEYWORD_ONLY
    ]


def _one(name: str, hint: Any, default: object, help_text: str) -> Declared | None:
    limits, spelled, read = Limits(), name, None
    may_change = simulated = tuned = False
    parts = [hint]
    kinds: list[type] = []
    objects: list[type] = []
    choices: list[str] = []
    optional = any_function = False
    while parts:
        part = parts.pop(0)
        origin = get_origin(part)
        if origin is Annotated:
            part, *notes = get_args(part)
            parts.append(part)
            for note in notes:
                if note is InPython:
                    return None
                may_change |= note is MayChange
                simulated |= note is Simulated
                tuned |= note is Tuned
                limits = note if isinstance(note, Limits) else limits
                choices += note.words if isinstance(note, OneOf) else ()
                spelled = note.name if isinstance(note, Spelled) else spelled
                read = note.read if isinstance(note, Reads) else read
        elif origin in (Union, UnionType):
            parts += get_args(part)
        elif origin is Literal:
            choices += [word for word in get_args(part) if isinstance(word, str)]
        elif part is NoneType:
            optional = True
        elif origin is AbstractCallable:
            any_function = True
        elif origin in (list, Sequence):
            kinds.append(list)
        elif part in (bool, int, float, Path) or (part is str and not choices):
            kinds.append(part)
        elif part is Any:
            kinds += [bool, int, float, str]
        elif isinstance(part, type) and part is not str:
            objects.append(part)
    return Declared(
        spelled,
        name,
        tuple(kinds),
        tuple(choices),
        limits,
        default,
        help_text,
        optional=optional,
        may_change=may_change,
        simulated=simulated,
        tuned=tuned,
        any_function=any_function,
        objects=tuple(objects),
        read=read,
    )


def _documented(owner: Callable[..., object]) -> dict[str, str]:
    """Read the section of parameters in a docstring, and in those of the classes above."""
    owners: Iterable[object] = reversed(owner.__mro__) if isinstance(owner, type) else [owner]
    found: dict[str, str] = {}
    for one in owners:
        text = inspect.cleandoc(
            vars(one).get("__doc__") or "" if isinstance(one, type) else one.__doc__ or ""
        )
        _, _, section = text.partition("Parameters\n----------\n")
        names: list[str] = []
        for line in section.splitlines():
            if line.startswith("    ") and names:
                for name in names:
                    found[name] = f"{found[name]} {line.strip()}".strip()
            elif line and not line.startswith(" "):
                names = [name.strip() for name in line.split(",")]
                if not all(name.isidentifier() for name in names):
                    break
                found |= dict.fromkeys(names, "")
    return found
