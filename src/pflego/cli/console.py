"""Rich's console, for names that come from data. Loaded only by commands that print tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from pflego.cli.terminal import printable

if TYPE_CHECKING:
    from pflego.comparison.tables import Sheet


class Console(RichConsole):
    """A console of Rich's whose texts command nothing; colours and tables are its own, and stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, and replace the control characters in texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, with the control characters of plain texts replaced before Rich measures them."""
        super().print(*(printable(one) if isinstance(one, str) else one for one in objects), **options)


def shown(sheet: Sheet) -> Table:
    """Turn a sheet into what the terminal shows."""
    table = Table(title=sheet.title, title_justify="left", caption_justify="left")
    table.caption = "\n".join(sheet.notes)
    table.add_column(sheet.rows, overflow="fold")
    for heading in sheet.columns:
        table.add_column(heading, justify="right", overflow="fold")
    for title, rows in sheet.groups.items():
        if title:
            table.add_row(f"[italic]{title}[/italic]")
        for row in rows:
            table.add_row(*row)
        table.add_section()
    return table
