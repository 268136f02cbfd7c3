"""Libraries that take seconds to import, and that few tests need."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


@dataclass(frozen=True)
class _Later:
    """Stands for a module until something of it is asked for."""

    name: str

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest_")):  # pytest asks every name of a file what it is
            raise AttributeError(attribute)
        return getattr(import_module(self.name), attribute)


def later(name: str, *, reason: str) -> Any:
    """Give a module that is imported when it is first used; where it is not installed, skip this file's tests."""
    if find_spec(name) is None:
        pytest.skip(reason, allow_module_level=True)
    return _Later(name)
