"""A record that somebody else has written, read with care."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TypeVar

from flwr.app import ConfigRecord, MetricRecord

from pflego.errors import UserError
from pflego.federation import ClientId

T = TypeVar("T")

LARGEST = 2**53


class MessageError(UserError):
    """What arrived is not what was agreed on. It is not used."""


class Reader:
    """Takes values from a record that somebody else has written."""

    def __init__(self, record: object) -> None:
        if not isinstance(record, ConfigRecord | MetricRecord):
            raise MessageError("a record is missing in it")
        self.entries: Mapping[str, object] = dict(record)

    def one(self, name: str, kinds: tuple[type[T], ...]) -> T:
        """Give a value of one of some types."""
        value = self.entries.get(name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise MessageError(f"its {name} is {str(value)[:40]!r}")
        return value

    def id(self, name: str) -> ClientId:
        """Give a client's id."""
        value = self.entries.get(name)
        return value if isinstance(value, str) else self.one(name, (int,))

    def whole(self, name: str, *, least: int) -> int:
        """Give a whole number."""
        value = self.one(name, (int,))
        if not least <= value <= LARGEST:
            raise MessageError(f"its {name} is {value}")
        return value

    def finite(self, name: str, *, least: float | None = None) -> float:
        """Give a number."""
        value = float(self.one(name, (float, int)))
        if not isfinite(value) or (least is not None and value < least):
            raise MessageError(f"its {name} is {value}")
        return value

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """Give one of some words."""
        value = self.one(name, (str,))
        if value not in known:
            raise MessageError(f"its {name} is {value[:40]!r}")
        return value

    def numbers(self, name: str, *, least: int) -> tuple[int, ...]:
        """Give whole numbers."""
        values = self.one(name, (list,))
        if not all(isinstance(value, int) and least <= value <= LARGEST for value in values):
            raise MessageError(f"its {name} are not whole numbers from {least}")
        return tuple(values)


def some(names: Iterable[object]) -> str:
    """The first few of many names, in words."""
    words = [str(name)[:40] for name in names]
    return ", ".join(words[:4]) + (", ..." if len(words) > 4 else "") if words else "nothing"
