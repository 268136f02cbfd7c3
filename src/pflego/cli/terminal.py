"""What is shown in a terminal: names come from data, and a name must not command the terminal."""

from __future__ import annotations

import re

import typer

# All that moves a cursor, changes colours or titles, or turns the direction of writing; lines and tabs stay.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Write control characters as Python does.

    >>> print(printable("ward \x1b[31m3"))
    ward \x1b[31m3
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """Write a message that quotes what others wrote as one line without control characters."""
    return printable(" ".join(text.split("\n")))


def say(text: object, *, err: bool = False) -> None:
    """Show a line that may hold names of files or clients; `err`: on standard error."""
    typer.echo(printable(str(text)), err=err)
