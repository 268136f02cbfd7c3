"""What the user got wrong: one clear line that says what, where and what to do.

Classes are stable, and what programs and tests may rely on; a sentence may be improved at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from math import inf
from numbers import Integral, Real
from os import PathLike, fsencode
from pathlib import Path


class UserError(ValueError):
    """Wrong input. The command line prints it as one line and exits with status 2."""


class SettingError(UserError):
    """A setting that is unknown, of the wrong kind, beyond its limits, or at odds with another."""


class DataError(UserError):
    """Data that cannot be trained on, or do not go together."""


class ModelError(UserError):
    """A backbone or a head that cannot be used."""


class FolderError(UserError, OSError):
    """A folder or file that cannot be used: not writable, damaged, or another run's."""

    __str__ = ValueError.__str__


class UntrustedError(UserError):
    """A file that was opened asks for code, and nobody said that it may be trusted."""


class MissingExtraError(UserError, ModuleNotFoundError):
    """A library that is not installed; the message says which extra has it."""

    __str__ = ValueError.__str__


def unknown(kind: str, name: str, known: Iterable[str]) -> SettingError:
    """Say that `name` is no `kind`, and which known name comes nearest.

    >>> print(unknown("data set", "digts", ["digits", "diabetes"]))
    unknown data set 'digts': did you mean 'digits'? (known: diabetes, digits)
    """
    choices = sorted(known)
    near = get_close_matches(name.lower(), choices, n=1)
    hint = (
        f"did you mean {near[0]!r}? (known: {', '.join(choices)})"
        if near
        else f"known are {', '.join(choices)}"
    )
    return SettingError(f"unknown {kind} {name!r}: {hint}")


def check_positive(name: str, value: object, *, whole: bool = False) -> None:
    """Refuse a setting that is not a finite number above zero (a whole one, if asked)."""
    kind = Integral if whole else Real
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < inf:  # type: ignore[operator]
        wanted = "a whole number" if whole else "a number"
        raise SettingError(f"{name} must be {wanted} above 0, not {value!r}")


def shortened(value: object, most: int = 60) -> str:
    """Write a value as Python does, or the beginning of a long one.

    >>> shortened([1] * 1000, most=10)
    '[1, 1, ...'
    """
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


@contextmanager
def calling(failed: str, kind: type[UserError]) -> Iterator[None]:
    """Call a function that the user has given: whatever it raises becomes an error that says what has failed.

    >>> with calling("load('ward-3') failed", DataError):
    ...     {}["age"]
    Traceback (most recent call last):
    pflego.errors.DataError: load('ward-3') failed: KeyError: 'age'
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # whatever somebody else's code does
        lines = [type(error).__name__, *str(error).splitlines()]
        raise kind(f"{failed}: {': '.join(lines[:2])}") from error


def named(function: object) -> str:
    """Give the name of a function, or of the class of something that can be called."""
    return str(getattr(function, "__name__", type(function).__name__))


def path_of(name: str, value: object) -> Path:
    """Make a path of what was given for one; refuse what is none."""
    if not isinstance(value, str | PathLike) or not is_path(str(value)):
        raise SettingError(f"{name} must be a path, not {shortened(value)}")
    return Path(value)


def is_path(text: str) -> bool:
    """Tell whether a text can name a file: the system can write it, and it holds no zero byte."""
    try:
        return b"\0" not in fsencode(text)
    except UnicodeEncodeError:
        return False


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a setting that is none of the choices."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:  # some values cannot even be compared
        raise unknown(name, str(value), known)
