"""Rich's console, for names that come from data. Loaded only by commands that print tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from pflego.cli.terminal import printable


class Console(RichConsole):
    """A console of Rich's whose texts command nothing; colours and tables are its own, and stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, and replace the control characters in texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, with the control characters of plain texts replaced before Rich measures them."""
        super().print(*(printable(one) if isinstance(one, str) else one for one in objects), **options)
