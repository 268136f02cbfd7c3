"""A run's settings: how they are written down and compared, and the record of what the run was made with."""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Container
from importlib.metadata import version
from typing import TypeAlias

import numpy as np
import tomli_w

Settings: TypeAlias = dict[str, object]

RECORD = "record"  # the table of settings.toml that nobody sets: versions and fingerprints


def as_toml(settings: Settings) -> str:
    """The text of settings.toml."""
    return tomli_w.dumps(_plain(settings))


def differences(old: Settings, new: Settings, *, but: Container[str] = ()) -> list[str]:
    """Say which settings differ, in words, but for some that may."""
    before, after = tomllib.loads(as_toml(old)), tomllib.loads(as_toml(new))
    was, now = before.pop(RECORD, {}), after.pop(RECORD, {})
    words = [
        f"{key} was {before.get(key, 'not set')!r}, is now {after.get(key, 'not set')!r}"
        for key in sorted(before.keys() | after.keys())
        if key not in but and before.get(key) != after.get(key)
    ]
    for key, what in [("federation", "the clients or their data"), ("model", "the model's starting weights")]:
        if was.get(key) != now.get(key):
            words.append(f"{what} are not the same")
    return words


def record(federation: str, model: str) -> dict[str, str]:
    """Note what a run was made with: fingerprints and versions."""
    return {"federation": federation, "model": model, **versions()}


def versions() -> dict[str, str]:
    """What the numbers were computed with."""
    return {
        "pflego": version("pflego"),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def joined_after(settings: Settings) -> list[int]:
    """The rounds after which clients joined a run that had begun without them, one a client."""
    made_with = settings.get(RECORD)
    return list(made_with.get("joined_after", [])) if isinstance(made_with, dict) else []


def _plain(settings: Settings) -> Settings:
    """Leave out what is not set, and make Python's numbers of NumPy's: TOML knows neither."""
    plain: Settings = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            plain[key] = _plain(value)
        elif value is not None:
            plain[key] = value.item() if isinstance(value, np.generic) else value
    return plain
