"""Write the reference: what `pflego` offers in Python, and every command with its options.

The words are those of docstrings and of `--help`. A name that pflego offers and no page has is a warning.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import click
import typer
from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.nodes import nested_parse_with_titles

import pflego
from docstrings import escaped, prose
from pflego.algorithms.registry import methods
from pflego.cli import app as commands


class Written(Directive):
    """A directive whose content is written by Python, as reStructuredText."""

    def lines(self) -> Iterator[str]:
        """Write the content."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parse what was written where the directive stands."""
        node = nodes.section()
        node.document = self.state.document
        nested_parse_with_titles(self.state, StringList(list(self.lines()), source=self.name), node)
        return node.children


class Offered(Written):
    """Names that pflego offers: `.. offered:: load Client`, with `:members:` if theirs are shown."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {"members": directives.flag}

    def lines(self) -> Iterator[str]:
        """Write one entry per name."""
        for name in self.arguments[0].split():
            yield from _entry(name, members="members" in self.options)


class Methods(Written):
    """All methods: the equations that a method's file opens with, then its settings."""

    def lines(self) -> Iterator[str]:
        """Write one section per method."""
        for kind in methods().values():
            yield from _titled(kind.__name__)
            yield from _opening(import_module(kind.__module__))
            yield from _entry(kind.__name__, members=False)


class Commands(Written):
    """All commands with their options, as `--help` has them."""

    def lines(self) -> Iterator[str]:
        """Write one section per command."""
        root = typer.main.get_command(commands)
        with click.Context(root, info_name="pflego") as context:
            yield from _command(root, context)


def _entry(name: str, *, members: bool) -> Iterator[str]:
    """Ask autodoc for a name of pflego's, or for a module and what is public in it."""
    value = getattr(pflego, name)
    if isinstance(value, ModuleType):
        yield from ("", f".. _pflego.{name}:")
        yield from _titled(f"pflego.{name}")
        yield from _opening(value)
        yield f".. currentmodule:: {value.__name__}"
        yield ""
        for public in _public(value):
            kind = "class" if isinstance(getattr(value, public), type) else "function"
            yield from _autodoc(kind, public, members=True)
    else:
        yield from ("", ".. currentmodule:: pflego", "")
        yield from _autodoc("class" if isinstance(value, type) else "function", name, members=members)


def _autodoc(kind: str, name: str, *, members: bool) -> Iterator[str]:
    options = ["    :members:"] if members and kind == "class" else []
    yield from (f".. auto{kind}:: {name}", *options, "")


def _public(module: ModuleType) -> list[str]:
    """List what a module offers: its `__all__`, or what is defined in it, other than bare data."""
    own = [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    names = getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]
    return [name for name in names if getattr(module, name).__doc__ and callable(getattr(module, name))]


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None  # it was listed
            with click.Context(inner, info_name=name, parent=context) as below:
                yield from _command(inner, below)
        return
    yield from _titled(context.command_path)
    yield from (_plain(line) for line in inspect.cleandoc(command.help or "").splitlines())
    yield ""
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            name, words = record
            yield f"``{' '.join(name.split())}``"
            yield f"    {_plain(' '.join(words.split())) or '.'}"
            yield ""


def _opening(module: ModuleType) -> Iterator[str]:
    """Write what a module's file opens with; its examples are tests."""
    lines = (inspect.getdoc(module) or "").splitlines()
    end = next((number for number, line in enumerate(lines) if line.startswith(">>>")), len(lines))
    yield from prose(lines[:end])


def _titled(title: str) -> Iterator[str]:
    yield from ("", title, "-" * len(title), "")


def _plain(text: str) -> str:
    """Take the terminal's own markup out of a text."""
    text = re.sub(r"\[bold\](.*?)\[/bold\]", r"`\1`", text.replace("\b", ""))
    return escaped(text.replace("\\[", "["))


def check_nothing_is_missing(app: Sphinx, failure: Exception | None) -> None:
    """Warn of names that pflego offers and no page of the reference has, those of earlier builds included."""
    domains = app.env.domains
    known = {*domains.python_domain.objects, *domains.standard_domain.anonlabels}
    lost = [name for name in dir(pflego) if not {f"pflego.{name}", f"pflego.{name}".lower()} & known]
    if failure is None and lost:
        logging.getLogger(__name__).warning("website/reference has no entry for %s", ", ".join(lost))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("offered", Offered)
    app.add_directive("methods", Methods)
    app.add_directive("commands", Commands)
    app.connect("build-finished", check_nothing_is_missing)
    return {"parallel_read_safe": False}
