"""The paper's settings and results, as they were published.

The figures stand in settings.toml and published.toml beside this file; an experiment has the same name in both.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from pflego.errors import unknown


class Accuracy(NamedTuple):
    """A table's entry, in per cent: mean ± interval."""

    mean: float
    interval: float


@dataclass(frozen=True)
class Published:
    """What the paper reports; published.toml says where each figure stands."""

    accuracy: Mapping[str, Mapping[str, Accuracy]]  # preset, method
    seconds: Mapping[str, Mapping[str, float]]  # a round; preset, method
    data_sets: Mapping[str, Mapping[str, Any]]
    figures: Mapping[str, Mapping[str, Any]]  # the settings behind the curves
    search: Mapping[str, list[float]]  # the rates that were tried
    claims: Mapping[str, float]  # what the text says in numbers


def published() -> Published:
    """Give the paper's results.

    >>> published().accuracy["mnist-high"]["pflego"]
    Accuracy(mean=98.7, interval=0.21)
    """
    tables = _read("published.toml")
    accuracy = {
        name: {method: Accuracy(*cell) for method, cell in row.items()}
        for name, row in tables.pop("accuracy").items()
    }
    return Published(accuracy=accuracy, **tables)


def methods(name: str) -> list[str]:
    """Give the methods the paper has best rates of, for a preset."""
    return [method for method in _settings()["methods"] if method in _preset(name)]


def preset(name: str, method: str = "pflego") -> dict[str, object]:
    """Give the settings of one of the paper's experiments, as an experiment or a settings file takes them.

    >>> settings = preset("mnist-high")
    >>> settings["client_lr"], settings["participation"]
    (0.189, 20)
    """
    own, method = _preset(name), method.lower()
    if method not in methods(name):
        raise unknown(f"method of the paper's {name}", method, methods(name))
    tables = _settings()
    return {
        "algorithm": method,
        **{key: value for key, value in own.items() if key not in tables["methods"]},
        **tables["data"][own["data"]],
        **tables["common"],
        **tables["methods"][method],
        **own[method],
    }


def _preset(name: str) -> dict[str, Any]:
    presets: dict[str, dict[str, Any]] = _settings()["presets"]
    if name not in presets:
        raise unknown("preset", name, presets)
    return presets[name]


@cache
def _settings() -> dict[str, Any]:
    return _read("settings.toml")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__name__).joinpath(name).read_text(encoding="utf-8"))


PRESETS: tuple[str, ...] = tuple(_settings()["presets"])

__all__ = ["PRESETS", "Accuracy", "Published", "methods", "preset", "published"]
