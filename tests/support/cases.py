"""Which of a test's many cases are always played."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

_EVERY = 3


def often(cases: Iterable[Any], *always: object) -> list[Any]:
    """Play the cases that are named and every third by `make test`, all of them by `make thorough`.

    For a test that takes a second or more a case, and whose cases go the same way through the code.
    """
    return [
        case if case in always or place % _EVERY == 0 else pytest.param(case, marks=pytest.mark.thorough)
        for place, case in enumerate(cases)
    ]
