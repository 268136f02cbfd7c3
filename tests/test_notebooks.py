"""Notebooks run, in a kernel, and what stands in them is what comes out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs"
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")  # of Jupyter's own
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    """To the last bit that holds with one version of torch alone: shares may differ by a few points."""
    shown = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    run = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        run, timeout=300, coalesce_streams=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    for before, now in zip(shown.cells, run.cells, strict=True):
        if before.cell_type == "code":
            assert [one.output_type for one in now.outputs] == [one.output_type for one in before.outputs]
            assert NUMBER.sub("#", printed(now)) == NUMBER.sub("#", printed(before))
            figures = [[float(number) for number in NUMBER.findall(printed(cell))] for cell in (now, before)]
            assert figures[0] == pytest.approx(figures[1], abs=3)
