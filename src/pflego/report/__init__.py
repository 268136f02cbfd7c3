"""What a person looks at: one HTML file that opens offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from pflego.files import make_folder, write_atomically

if TYPE_CHECKING:
    from pflego.report.content import Content
    from pflego.runs.run import Run

_PAGE = Path(__file__).with_name("page")
_SCRIPTS = [
    "base",
    "charts",
    "rounds",
    "clients",
    "pictures",
    "roster",
    "client",
    "presence",
    "tables",
    "page",
]


def write_report(runs: Sequence[Run], path: Path, *, alone: bool | None = None) -> Path:
    """Write a page about a run, or about several side by side.

    alone: whether to try how clients would do without the others; None: if that is quick.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("for a report: pip install 'pflego[report]'") from error
    from pflego.report.content import content

    make_folder(path.parent)
    write_atomically(path, page(content(runs, alone=alone), get_plotlyjs()).encode())
    return path


def page(content: Content, plotly: str) -> str:
    """Put data, style and scripts into one file."""
    return Template(_read("page.html")).substitute(
        title=escape(content.title),
        headline=escape(content.headline),
        style=_read("page.css"),
        plotly=plotly,
        data=embedded(asdict(content)),
        script="\n".join(_read(f"{name}.js") for name in _SCRIPTS),
    )


def embedded(data: object) -> str:
    """Write JSON that is safe in a page whatever it holds: nothing ends a script or begins a comment."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")
