"""What is wrong with data, all of it at once, and what only looks wrong."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from pflego.errors import DataError

_SHOWN = 12  # names in a message


class DataProblems(DataError):  # noqa: N818 - several at once
    """Data that cannot be trained on. Its line is the first of `problems`; pflego data check shows them all."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = f" (and {len(problems) - 1} more: pflego data check)" if len(problems) > 1 else ""
        super().__init__(problems[0] + more)
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[DataProblems], tuple[Sequence[str]]]:
        """Made again from all of them where it is sent: its line alone would be taken for a list of letters."""
        return type(self), (self.problems,)


class DataWarning(UserWarning):
    """Data that can be trained on, but look as if something else was meant."""


def warn(words: str) -> None:
    """Say what looks wrong."""
    warnings.warn(words, DataWarning, stacklevel=2)


def listed(names: Sequence[str]) -> str:
    """List names in a message, or some of very many."""
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown}, ... ({len(names)} in all)"
