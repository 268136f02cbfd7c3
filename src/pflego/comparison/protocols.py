"""Experiments that others report: their settings for a comparison here, and their figures beside ours."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from pflego.errors import unknown


@dataclass(frozen=True)
class Protocol:
    """One of them; protocols.toml says where it is from."""

    about: str
    settings: Mapping[str, object]
    published: Mapping[str, float]  # by method, in per cent
    differs: tuple[str, ...]  # how a figure here is not the same as theirs

    @property
    def notes(self) -> list[str]:
        """What must be said beside the figures."""
        return [
            f"published: {self.about}; to be held against everyone.",
            *(f"But {d}." for d in self.differs),
        ]


@cache
def protocols() -> Mapping[str, Protocol]:
    """Give all protocols by name.

    >>> protocols()["pfllib-fashion-2"].published["fedavg"]
    80.41
    """
    text = files(__package__).joinpath("protocols.toml").read_text(encoding="utf-8")
    return MappingProxyType(
        {
            name: Protocol(one["about"], one["settings"], one["published"], tuple(one["differs"]))
            for name, one in tomllib.loads(text).items()
        }
    )


def find_protocol(name: str) -> Protocol:
    """Give the protocol of a name."""
    if name not in protocols():
        raise unknown("protocol", name, protocols())
    return protocols()[name]
