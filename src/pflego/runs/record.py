"""A run's settings as they are written down, and the record of what the run was made with.

[data] [model] [method] [run]   what was asked for, a table each, so that names cannot collide
[record]                        what nobody sets: versions, fingerprints, who joined when
"""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Container, Iterable, Mapping
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tomli_w

Table: TypeAlias = dict[str, object]
Tables: TypeAlias = dict[str, Table]

RECORD = "record"
JOINED = "joined"  # in [data]: who came later, and with which data
TABLES = ("data", "model", "method", "run")
# What is called otherwise where there are no tables: on the command line, in flat files, in Python.
FLAT = {
    ("data", "name"): "data",
    ("data", "seed"): "data_seed",
    ("model", "name"): "model",
    ("model", "seed"): "model_seed",
    ("method", "name"): "algorithm",
}
_IN_TABLE = {flat: name for (_, name), flat in FLAT.items()}


def in_table(settings: Mapping[str, object]) -> Table:
    """Give settings of one table, called as Python calls them, by their names in the table.

    >>> in_table({"data": "digits", "data_seed": 1, "clients": 20})
    {'name': 'digits', 'seed': 1, 'clients': 20}
    """
    return {_IN_TABLE.get(name, name): value for name, value in settings.items()}


def flat(tables: Mapping[str, Mapping[str, object]], *, taken: Iterable[str] = ()) -> Table:
    """Give all settings in one table, as the command line calls them, but for the record.

    A method's setting that is called like another one, of these tables or in `taken`, is called method.<name>.

    >>> flat({"data": {"name": "digits", "clients": 20}, "run": {"rounds": 5}, "record": {"torch": "2"}})
    {'data': 'digits', 'clients': 20, 'rounds': 5}
    """
    spelled = [
        (table, FLAT.get((table, name), name), value)
        for table in TABLES
        for name, value in tables.get(table, {}).items()
        if value is not None
    ]
    others = {*taken, *(name for table, name, _ in spelled if table != "method")}
    return {
        f"method.{name}" if table == "method" and name in others else name: value
        for table, name, value in spelled
    }


def as_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    """Give the text of settings.toml."""
    return tomli_w.dumps(_plain(tables))


def differences(old: Tables, new: Tables, *, but: Container[str] = ()) -> list[str]:
    """Say which settings differ, in words, but for those of [run] that may."""
    before, after = tomllib.loads(as_toml(old)), tomllib.loads(as_toml(new))
    words = []
    for table in TABLES:
        was, now = before.get(table, {}), after.get(table, {})
        for key in sorted(was.keys() | now.keys()):
            if was.get(key) != now.get(key) and not (table == "run" and key in but):
                name = FLAT.get((table, key), key)
                words.append(f"{name} was {was.get(key, 'not set')!r}, is now {now.get(key, 'not set')!r}")
    was, now = before.get(RECORD, {}), after.get(RECORD, {})
    for key, what in [("federation", "the clients or their data"), ("model", "the model's starting weights")]:
        if was.get(key) != now.get(key):
            words.append(f"{what} are not the same")
    return words


def record(federation: str, model: str) -> Table:
    """Note what a run was made with: fingerprints and versions."""
    return {"federation": federation, "model": model, **versions()}


def versions() -> dict[str, str]:
    """Give what the numbers were computed with."""
    return {
        "pflego": version("pflego"),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def settings_digest(tables: Mapping[str, Mapping[str, object]], *, free: Container[str]) -> str:
    """Digest the settings that may not change once a run has begun: all but the free ones of [run], and joining."""
    fixed = {table: dict(tables.get(table, {})) for table in TABLES}
    fixed["run"] = {name: value for name, value in fixed["run"].items() if name not in free}
    fixed["data"].pop(JOINED, None)
    return digest_of_bytes(as_toml(fixed).encode())


def file_digest(path: Path) -> str | None:
    """Digest a file; None if it is not there."""
    return digest_of_bytes(path.read_bytes()) if path.is_file() else None


def digest_of_bytes(content: bytes) -> str:
    """Digest some bytes."""
    return blake2b(content, digest_size=16).hexdigest()


def joined_states(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Give the files with the states of clients that joined, and their digests."""
    return dict(tables.get(RECORD, {}).get("joined_states", {}))


def joined_after(tables: Mapping[str, Mapping[str, Any]]) -> list[int]:
    """Give the rounds after which clients joined a run that had begun without them, one per client."""
    return list(tables.get(RECORD, {}).get("joined_after", []))


def _plain(settings: Mapping[str, object]) -> dict[str, Any]:
    """Leave out what is not set, and make Python's numbers of NumPy's: TOML knows neither."""
    plain: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            plain[key] = _plain(value)
        elif value is not None:
            plain[key] = value.item() if isinstance(value, np.generic) else value
    return plain
