"""Which of a test's many cases are always played."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any
from zlib import crc32

import pytest

_EVERY = 8


def often(cases: Iterable[Any], *always: object) -> list[Any]:
    """Play the cases that are named and every eighth by `make test`, all of them by `make thorough`.

    For a test that takes long, and whose cases go the same way through the code. Where the counting begins depends on
    the module: tests of every method play other methods in other modules.
    """
    found = list(cases)
    first = crc32(sys._getframe(1).f_globals["__name__"].encode()) % min(_EVERY, len(found))
    return [
        case if case in always or place % _EVERY == first else pytest.param(case, marks=pytest.mark.thorough)
        for place, case in enumerate(found)
    ]
