"""Settings as options of commands, made from where they are declared, when a command is asked for.

A command says which tables it takes, `@app.command(cls=taking("data", "run"))`, and finds what was given with
`given(context)`. A method of somebody else's, --algorithm module:Class, brings its own options.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from typer.core import TyperCommand, TyperOption

from pflego.errors import SettingError

if TYPE_CHECKING:
    from pflego.algorithms.base import Algorithm
    from pflego.declaration import Declared

_GIVEN = "pflego.given"
_GUESTS = "pflego.guests"
_PANELS = {"data": "Data", "model": "Method", "method": "Method", "run": "Run"}

SettingsFile = Annotated[
    Path | None,
    typer.Argument(help="A TOML file of the same names as the options; options given here take precedence."),
]
Preset = Annotated[
    str | None,
    typer.Option(help="One of the paper's experiments, such as mnist-high (pflego paper settings)."),
]


def given(context: typer.Context) -> dict[str, object]:
    """Give the settings that were given as options, by their names."""
    found: dict[str, object] = context.meta[_GIVEN]
    return found


def taking(*tables: str, only: Collection[str] = (), without: Collection[str] = ()) -> type[SettingsCommand]:
    """Make the class of a command that takes the settings of some tables, and of the others `only` those named."""

    class Command(SettingsCommand):
        takes = (tables, frozenset(only), frozenset(without))

    return Command


class SettingsCommand(TyperCommand):
    """A command that takes settings as options."""

    takes: tuple[Sequence[str], Collection[str], Collection[str]]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find out whose options there are before they are read."""
        ctx.meta[_GUESTS] = list(dict.fromkeys(_guests(args)))
        arguments = [one.name for one in self.params if isinstance(one, click.Argument) and one.name]
        return super().parse_args(ctx, _as_words(args, arguments))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Give the command's own parameters and the settings it takes."""
        *own, help_option = super().get_params(ctx)
        return [*own, *(_option(*one) for one in self._settings(ctx)), help_option]

    def invoke(self, ctx: click.Context) -> object:
        """Hand settings over apart from the command's own parameters."""
        names = {_parameter(name): name for _, name, _ in self._settings(ctx)}
        chosen = {name: ctx.params.pop(parameter) for parameter, name in names.items()}
        ctx.meta[_GIVEN] = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in chosen.items()
            if value is not None and value != ()
        }
        return super().invoke(ctx)

    def _settings(self, ctx: click.Context) -> Iterator[tuple[str, str, Declared]]:
        """Give table, name and declaration of every setting that is taken."""
        from pflego.algorithms.registry import methods
        from pflego.runs.record import TABLES
        from pflego.settings.tables import known

        tables, only, without = self.takes
        mine = {parameter.name for parameter in self.params}
        for table in TABLES:
            entries = known(table)
            if table == "method":
                words = f"The method: {', '.join(methods())}, or module:Class of your own."
                entries["algorithm"] = replace(entries["algorithm"], help=words)
                entries |= _of_methods(ctx.meta.get(_GUESTS, []))
            for name, one in entries.items():
                if (table in tables or name in only) and name not in without and name not in mine:
                    yield table, name, one


def beneath(file: Path | None, preset: str | None, given: Mapping[str, object]) -> dict[str, object]:
    """Give what options are laid over: the settings of a file, over those of one of the paper's experiments."""
    from pflego import paper
    from pflego.settings.tables import read_settings

    base = {} if file is None else read_settings(file)
    if preset is None:
        return base
    algorithm = str(given.get("algorithm", base.get("algorithm", "pflego")))
    return {**paper.preset(preset, algorithm), **base}


def folder_of(settings: Mapping[str, object]) -> Path:
    """Give the run's folder, which must be named."""
    if "out" not in settings:
        raise SettingError("to resume a run, say where it is: --out FOLDER")
    return Path(str(settings["out"]))


class _Kind(click.ParamType):  # type: ignore[type-arg]
    """A value as it was declared. What is wrong with it is said like everything else: in one line, by `main`."""

    name = "setting"

    def __init__(self, one: Declared) -> None:
        self._one = one

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        return self._one.parse(value) if isinstance(value, str) else value


def _option(table: str, name: str, one: Declared) -> TyperOption:
    from pflego.settings.tables import spelled_option

    option, words = spelled_option(name), one.summary.replace("[", "\\[") + _default(one)
    panel = _PANELS[table]
    if bool in one.kinds:
        off = option.replace("--", "--no-", 1)
        return TyperOption(
            param_decls=[_parameter(name), f"{option}/{off}"],
            is_flag=True,
            default=None,
            help=words,
            rich_help_panel=panel,
        )
    return TyperOption(
        param_decls=[_parameter(name), option],
        type=_Kind(one),
        multiple=one.listed and str not in one.kinds,
        metavar=_metavar(one),
        help=words,
        rich_help_panel=panel,
    )


def _metavar(one: Declared) -> str:
    kinds = {int: "NUMBER", float: "NUMBER", str: "TEXT", Path: "PATH", list: "TEXT"}
    words = [*dict.fromkeys(kinds[kind] for kind in one.kinds if kind in kinds), *one.choices]
    return "|".join(words) if sum(map(len, words)) <= 24 else "NAME"


def _default(one: Declared) -> str:
    shown = one.default
    if shown is None or shown is MISSING or shown == "":
        return ""
    return f" \\[{_words(shown)}]"


def _words(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _parameter(name: str) -> str:
    """Give the name of a setting as a parameter of Python's."""
    return name.replace(".", "__")


def _of_methods(guests: Iterable[str]) -> dict[str, Declared]:
    """Give the settings of all methods together, each by the first that has it, with everybody's defaults."""
    from pflego.algorithms.registry import find_method, methods
    from pflego.settings.tables import known

    kinds = {**methods(), **{name: find_method(name) for name in guests}}
    title = known("method")
    found: dict[str, dict[str, Declared]] = {}
    for method, kind in kinds.items():
        for name, one in known("method", kind).items():
            if name not in title:
                found.setdefault(name, {})[method] = one
    return {name: _merged(owners, kinds) for name, owners in found.items()}


def _merged(owners: Mapping[str, Declared], methods: Mapping[str, type[Algorithm]]) -> Declared:
    first = next(iter(owners.values()))
    defaults: dict[str, list[str]] = {}
    for method, one in owners.items():
        if one.default is not None:
            defaults.setdefault(_words(one.default), []).append(method)
    shown = max(defaults, key=lambda value: len(defaults[value]), default=None)
    others = [f"{', '.join(names)} {value}" for value, names in defaults.items() if value != shown]
    whose = "" if len(owners) == len(methods) else f" ({', '.join(owners)})"
    return replace(
        first,
        kinds=tuple(dict.fromkeys(kind for one in owners.values() for kind in one.kinds)),
        choices=tuple(dict.fromkeys(word for one in owners.values() for word in one.choices)),
        help=first.summary.rstrip(".") + whose + ".",
        default=None if shown is None else "; ".join([shown, *others]),
    )


def _as_words(args: Sequence[str], arguments: Iterable[str]) -> list[str]:
    """Take a command's argument that was named like another command's option for the word it stands for.

    >>> _as_words(["--clients", "9", "--data", "digits"], ["data"])
    ['digits', '--clients', '9']
    """
    words = list(args)
    for name in arguments:
        for place, word in enumerate(words):
            option, equals, value = word.partition("=")
            if option == f"--{name}" and (equals or place + 1 < len(words)):
                del words[place]
                words.insert(0, value if equals else words.pop(place))
                break
    return words


def _guests(args: Sequence[str]) -> Iterator[str]:
    """Find the methods of somebody else's that a command line names: in options, in a file, in the run it resumes."""
    from pflego.settings.tables import read_settings

    words = [part for word in args for part in (word.split("=", 1) if word.startswith("--") else [word])]
    named = dict(pairwise(words))
    texts = [named.get("--algorithm", ""), *named.get("--algorithms", "").split(",")]
    files = [Path(word) for word in args if word.endswith(".toml")]
    if "--resume" in words and "--out" in named and "--trust" in words:
        files.append(Path(named["--out"]) / "settings.toml")
    texts += [str(read_settings(file).get("algorithm", "")) for file in files if file.is_file()]
    yield from (text.strip() for text in texts if ":" in text)
