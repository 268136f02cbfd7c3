"""What the user got wrong: one clear line that says what, where and what to do.

Classes are stable, and what programs and tests may rely on; a sentence may be improved at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from numbers import Integral, Real


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


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a setting that is none of the choices."""
    if value not in (known := list(choices)):
        raise unknown(name, str(value), known)
