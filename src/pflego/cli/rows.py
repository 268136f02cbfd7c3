"""Rows as CSV or JSON, for other programs to read: to a file, or where the next command can take them."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from pflego.cli.terminal import printable
from pflego.errors import UserError, check_choice

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # how a cell begins that a spreadsheet computes
FORMATS = ["csv", "json"]

OutFile = Annotated[Path | None, typer.Option(help="File to write, .csv or .json. \\[the terminal]")]
FormatName = Annotated[str | None, typer.Option("--format", help="csv or json. \\[as --out ends, or csv]")]


def choose(file_format: str | None, out: Path | None) -> str:
    """Return the format that was asked for, or that a file's name ends in."""
    if file_format is not None:
        check_choice("format", file_format, FORMATS)
        return file_format
    if out is None:
        return "csv"
    if (end := out.suffix.lower().removeprefix(".")) not in FORMATS:
        raise UserError(f"{out} is neither .csv nor .json: say which it shall be, with --format")
    return end


def as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Write one line per row; what a row does not have stays blank."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writerow({name: plain(name) for name in columns})
    writer.writerows({name: plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def plain(value: object) -> object:
    """Quote a text that a spreadsheet would run as a formula; a number stays a number.

    >>> plain("=HYPERLINK(1)"), plain("-1.5"), plain("@home"), plain(-2)
    ("'=HYPERLINK(1)", '-1.5', "'@home", -2)
    """
    if not isinstance(value, str) or not value.lstrip(" ").startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def as_json(content: object) -> str:
    """Write the same as lists and objects."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def put(text: str, out: Path | None) -> None:
    """Write it to a file, or print it."""
    if out is None:
        typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
        return
    from pflego.files import make_folder, write_atomically

    make_folder(out.parent)
    write_atomically(out, text.encode("utf-8", "backslashreplace"))
