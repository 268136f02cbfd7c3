"""What can be set: four tables, whose entries are declared where they are used.

    [data]     `pflego.load`         [method]   the fields of the method
    [model]    `models.build`        [run]      `pflego.train`

Without tables, on the command line and in flat files, names are the same but for those that say what a table is about:
data, data_seed, model, model_seed, algorithm. A method's field that is called like another setting is method.<name>.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pflego.algorithms.base import Algorithm
from pflego.algorithms.registry import find_method, methods
from pflego.data import load
from pflego.declaration import Declared, MayChange, arguments, declared
from pflego.errors import SettingError, unknown
from pflego.models import build
from pflego.runs.record import FLAT, JOINED, RECORD, TABLES, Table, Tables, flat, in_table
from pflego.training.train import train


@dataclass(frozen=True)
class DataChoice:
    """Which data.

    Parameters
    ----------
    data
        A data set (digits, mnist, ...; pflego data list), or your own: a file or a folder.
    data_seed
        Seed of the partition and of what is for testing; --seed if not given.
    """

    data: str = "digits"
    data_seed: int | None = None


@dataclass(frozen=True)
class ModelChoice:
    """Which backbone.

    Parameters
    ----------
    model
        Backbone: mlp, cnn, cifar-cnn, omniglot-conv4, watch-cnn, char-cnn; pretrained ones: efficientnet-lite0,
        timm:NAME, hf:NAME; or module:function. If not given, the paper's for the data set, or one that suits it.
    model_seed
        Seed of the first weights; --seed if not given.
    """

    model: str | None = None
    model_seed: int | None = None


@dataclass(frozen=True)
class MethodChoice:
    """Which method.

    Parameters
    ----------
    algorithm
        The method, or module:Class of your own.
    """

    algorithm: str = "pflego"


@dataclass(frozen=True)
class Tracking:
    """Which logs.

    Parameters
    ----------
    track
        Log to tensorboard, mlflow, wandb or csv, or a list of them, in the run's folder.
    """

    track: Annotated[str | Sequence[str] | None, MayChange] = None


_OWNERS: dict[str, tuple[Callable[..., object], ...]] = {
    "data": (DataChoice, load),
    "model": (ModelChoice, build),
    "method": (MethodChoice,),
    "run": (train, Tracking),
}


def known(table: str, kind: type[Algorithm] | None = None) -> dict[str, Declared]:
    """Give the settings of a table by the names of the command line; those of [method] with a method's own."""
    own = {name: one for owner in _OWNERS[table] for name, one in declared(owner).items()}
    if kind is not None:
        taken = _taken()
        own |= {f"method.{n}" if n in taken else n: one for n, one in declared(kind).items()}
    return own


@dataclass(frozen=True)
class Settings:
    """Settings that were given, checked, in their tables."""

    tables: Tables

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Settings:
        """Sort settings into their tables and check them; they may be in tables already."""
        tables: Tables = {table: {} for table in TABLES}
        loose: Table = {}
        for name, value in given.items():
            if name in TABLES and isinstance(value, Mapping):
                spelled = {called: own for (table, own), called in FLAT.items() if table == name}
                tables[name] |= {spelled.get(str(key), str(key)): one for key, one in value.items()}
            elif name != RECORD and value is not None:
                loose[name] = value
        _sort(loose, tables)
        settings = cls(tables)
        settings.check()
        return settings

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Read a TOML file."""
        return cls.of(read_settings(path))

    @cached_property
    def kind(self) -> type[Algorithm]:
        """The class of the method."""
        name = self.tables["method"].get("name", declared(MethodChoice)["algorithm"].default)
        if not isinstance(name, str):
            raise SettingError(f"algorithm must be a text, not {name!r}")
        return find_method(name)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method, with those of the settings that are its own."""
        own = {name: value for name, value in self.tables["method"].items() if name != "name"}
        return self.kind(**arguments(self.kind, own))

    @property
    def flat(self) -> Table:
        """All that was given, as the command line calls it."""
        return flat(self.tables, taken=_taken())

    def value(self, name: str) -> object:
        """Give what a setting is, by its name on the command line: as given, or its default."""
        if name in (given := self.flat):
            return given[name]
        for table in TABLES:
            if (one := known(table, self.kind if table == "method" else None).get(name)) is not None:
                return None if one.default is MISSING else one.default
        raise KeyError(name)

    def changed(self, **changes: object) -> Settings:
        """Give the same settings with some changed, by their names on the command line; None: not given."""
        return Settings.of({**self.flat, **changes})

    def check(self) -> None:
        """Refuse what is not known, of the wrong kind or beyond its limits."""
        for table in TABLES:
            names = known(table, self.kind if table == "method" else None)
            own = {FLAT.get((table, n), n): value for n, value in self.tables[table].items() if n != JOINED}
            for name, value in own.items():
                one = names.get(name) or names.get(f"{table}.{name}")
                if one is None:
                    raise self._unknown(name, table)
                one.check(value)
        _ = self.algorithm  # what its values must agree on is its own business

    def _unknown(self, name: str, table: str) -> SettingError:
        for home in TABLES:
            if home != table and name in known(home, self.kind if home == "method" else None):
                return SettingError(f"{name} belongs in [{home}], not in [{table}]")
        own = sorted(declared(self.kind))
        if any(name in declared(kind) for kind in methods().values()):
            return SettingError(
                f"{self.algorithm.name} has no setting {name!r}; its own are {', '.join(own)}"
            )
        everything = [n for t in TABLES for n in known(t, self.kind if t == "method" else None)]
        return unknown("setting", name, everything if table == "method" else known(table))


def read_settings(path: Path) -> Table:
    """Read a TOML file of settings, in tables or without, as the command line calls them."""
    try:
        read = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML: {error}") from error
    tables = {name: read.pop(name) for name in TABLES if isinstance(read.get(name), dict)}
    read.pop(RECORD, None)
    for table in tables.keys() - {"method"}:
        _check_table(table, tables[table], path)
    loose = flat(tables, taken=_taken())
    if twice := sorted(loose.keys() & read.keys()):
        raise SettingError(f"{path} has {twice[0]} twice: in a table and outside of one")
    return {**loose, **read}


def command(settings: Mapping[str, object]) -> str:
    """Spell settings as a command.

    >>> command({"data": "patients.csv", "drop": ["id", "name"], "scale": False, "client_lr": "auto"})
    'pflego run --data patients.csv --drop id --drop name --no-scale --client-lr auto'
    """
    words = ["pflego", "run"]
    for name, value in settings.items():
        option = spelled_option(name)
        match value:
            case bool():
                words.append(option if value else option.replace("--", "--no-", 1))
            case list():
                words += [word for one in value for word in (option, str(one))]
            case _:
                words += [option, str(value)]
    return shlex.join(words)


def spelled_option(name: str) -> str:
    """Spell a setting as an option.

    >>> spelled_option("client_lr"), spelled_option("method.seed")
    ('--client-lr', '--method-seed')
    """
    return "--" + name.replace("_", "-").replace(".", "-")


def as_tables(given: Mapping[str, object]) -> Tables:
    """Sort settings into their tables, to be written down."""
    return {table: own for table, own in Settings.of(given).tables.items() if own}


def _taken() -> set[str]:
    """Give the names of all settings that are not a method's: a field that is called so is method.<name>."""
    return {name for table in TABLES if table != "method" for name in known(table)}


def _check_table(table: str, own: Mapping[str, object], path: Path) -> None:
    """Refuse names in a file's table that are not the table's: without tables they would find another place."""
    names = known(table)
    for name in own:
        called = FLAT.get((table, name), name)
        if called not in names and name != JOINED:
            homes = [home for home in TABLES if called in known(home)]
            home = homes[0] if homes else "method"
            raise SettingError(
                f"{path}: {name} belongs in [{home}], or is unknown; it is no setting of [{table}]"
            )


def _sort(loose: Mapping[str, object], tables: Tables) -> None:
    """Put settings without a table where they belong; what nobody knows is taken for the method's."""
    homes = {name: table for table in TABLES for name in known(table)}
    homes[JOINED] = "data"
    for name, value in loose.items():
        table = homes.get(name, "method")
        own = name.removeprefix("method.") if table == "method" else name
        tables[table] |= in_table({own: value}) if name in homes else {own: value}
