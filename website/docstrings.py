"""Turn docstrings as they are written here into what Sphinx reads.

They are plain text with `code`, equations and a numpy-style section of parameters. What a parameter may be is not
written there: it is declared in the signature, and read from it as the command line does.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from itertools import groupby

from docutils import nodes
from sphinx.application import Sphinx

from pflego.algorithms.base import Algorithm
from pflego.declaration import Declared, declared

SECTION = re.compile(r"^(Parameters|Attributes|Returns|Yields|Raises)$")
MARKUP = re.compile(r"(`[^`]*`)|([*|\\]|_(?=\W|$))")
DISPLAYED = re.compile(r"^ |\S {3}|^>>>", re.MULTILINE)  # equations, code, tables


def rewrite(app: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Write a docstring anew, in place: before napoleon reads its sections."""
    text, sections, examples = _divided(lines)
    lines[:] = [
        *prose(text),
        *_sections(value, sections),
        *(["Examples", "--------"] if examples else []),
        *examples,
    ]


def prose(lines: list[str]) -> Iterator[str]:
    """Write paragraphs of words with signs of markup as themselves, and all others as they are."""
    for blank, group in groupby(lines, key=lambda line: not line.strip()):
        paragraph = list(group)
        if blank or paragraph[0].startswith(">>>"):
            yield from paragraph
        elif DISPLAYED.search("\n".join(paragraph)):
            yield from ("", ".. code-block:: text", "", *(f"    {line}" for line in paragraph), "")
        else:
            yield from map(escaped, paragraph)
    yield ""


def escaped(line: str) -> str:
    """Keep signs of markup from being read as such, outside of `code`."""
    return MARKUP.sub(lambda found: found[1] or f"\\{found[2]}", line)


def _divided(lines: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Part a docstring into its text, its sections and its examples."""
    example = next((number for number, line in enumerate(lines) if line.startswith(">>>")), len(lines))
    for number, line in enumerate(lines[:example]):
        if SECTION.match(line) and lines[number + 1].startswith("---"):
            return lines[:number], lines[number:example], lines[example:]
    return lines[:example], [], lines[example:]


def _sections(value: object, lines: list[str]) -> Iterator[str]:
    """Write sections, each parameter with what it may be; a method's parameters are those of its bases too."""
    settings = _settings(value)
    if isinstance(value, type) and issubclass(value, Algorithm) and settings:
        yield from ("Parameters", "----------")
        for one in settings.values():
            yield from (one.parameter, f"    {_kind(one)}{escaped(one.help)}")
        yield ""
        return
    kind = ""
    for line in lines:
        if line.startswith("    "):
            yield f"    {kind}{escaped(line.strip())}" if kind else escaped(line)
            kind = ""
        else:
            kind = _kind(settings[line]) if line in settings else ""
            yield line


def _settings(value: object) -> dict[str, Declared]:
    """Give what a dataclass declares, or a function that is no class's method."""
    if (isinstance(value, type) and is_dataclass(value)) or (
        inspect.isfunction(value) and value.__name__ == value.__qualname__
    ):
        return {one.parameter: one for one in declared(value).values()}
    return {}


def _kind(one: Declared) -> str:
    """Say what a setting may be, and what it is if not given."""
    known = one.default is not MISSING and one.default is not None
    words = [one.wanted(), f"default {one.default}" if known else ""]
    return f"({escaped(', '.join(filter(None, words)))}) " if any(words) else ""


def join_by_dashes(app: Sphinx, tree: nodes.document) -> None:
    """Set a dash between a parameter and its words, as smart quotes would, which options cannot have."""
    for text in [*tree.findall(nodes.Text)]:
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Sphinx) -> dict[str, bool]:
    """Come before napoleon."""
    app.connect("autodoc-process-docstring", rewrite, priority=100)
    app.connect("doctree-read", join_by_dashes)
    return {"parallel_read_safe": True}
