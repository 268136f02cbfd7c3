"""Methods by name: those of this package register themselves, guests are named module:Class."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TypeVar, dataclass_transform

from pflego.algorithms.base import Algorithm
from pflego.declaration import load_object
from pflego.errors import SettingError, unknown

Method = TypeVar("Method", bound=Algorithm)

_PACKAGE = "pflego.algorithms"
_METHODS: dict[str, type[Algorithm]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def method(kind: type[Method]) -> type[Method]:
    """Make a frozen dataclass of a class and, in this package, let it be found by its name."""
    made = dataclass(frozen=True, kw_only=True)(kind)
    if made.__module__.startswith(f"{_PACKAGE}."):  # a guest's module must be named: nobody else imports it
        _METHODS[made.__name__.lower()] = made
    return made


@cache
def methods() -> Mapping[str, type[Algorithm]]:
    """Give all methods of this package by their names, PFLEGO first and the others in the order of the alphabet."""
    package = import_module(_PACKAGE)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    names = sorted(_METHODS, key=lambda name: (name != "pflego", name))
    return MappingProxyType({name: _METHODS[name] for name in names})


def find_method(name: str) -> type[Algorithm]:
    """Give the method of a name: one of this package's, or module:Class."""
    if ":" not in name:
        called = name.lower()
        if called not in _METHODS and called.isidentifier() and find_spec(f"{_PACKAGE}.{called}"):
            import_module(f"{_PACKAGE}.{called}")  # alone: a client needs no other method
        if called not in _METHODS and called not in methods():
            raise unknown("algorithm", name, methods())
        return _METHODS[called]
    kind = load_object(name, "algorithm")
    if not isinstance(kind, type) or not issubclass(kind, Algorithm):
        raise SettingError(f"algorithm {name!r} is no class of pflego.Algorithm's kind")
    return kind


def spelling(kind: type[Algorithm]) -> str:
    """Give the name by which settings files call a method.

    >>> spelling(find_method("fedavg"))
    'fedavg'
    """
    name = kind.__name__.lower()
    return name if _METHODS.get(name) is kind else f"{kind.__module__}:{kind.__qualname__}"
