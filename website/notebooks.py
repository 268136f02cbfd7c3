"""Show notebooks as pages: their text, their code, and what it printed and drew when it was last run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

HOW = (
    "*This page is a notebook, shown with what it printed when it was last run. To run it yourself, from a clone: "
    "`pip install jupyterlab`, then `jupyter lab docs/{name}`.*"
)


class NotebookParser(MystParser):
    """Read a notebook as the Markdown that it amounts to."""

    supported = ("ipynb",)  # type: ignore[misc]  # its two bases disagree on what kind of variable it is

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse its text and code, and its outputs as text and pictures."""
        name = Path(document["source"]).name
        super().parse("\n\n".join(_page(json.loads(inputstring), name)), document)


def _page(notebook: dict[str, Any], name: str) -> Iterator[str]:
    for number, cell in enumerate(notebook["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield text
        else:
            yield f"```python\n{text}\n```"
            for output in cell["outputs"]:
                yield _shown(output)
        if number == 0:
            yield HOW.format(name=name)


def _shown(output: dict[str, Any]) -> str:
    """Write an output as Markdown: a picture where there is one, text otherwise."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![what the code above draws](data:image/png;base64,{''.join(data['image/png'].split())})"
    printed = output["text"] if output["output_type"] == "stream" else data["text/plain"]
    return f"```text\n{''.join(printed).rstrip()}\n```"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the kind of file."""
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
