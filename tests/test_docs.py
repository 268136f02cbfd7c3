"""What the README and docs/ show runs, page by page, each in an empty folder; what they measured has a data file.

A block that begins with ```bash needs=NAME is run where PFLEGO_REAL_DATA has the data set of this name.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from pflego.cli import main
from pflego.data.sets import find
from pflego.errors import MissingExtraError

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDING = re.compile(r"^```(python|bash) needs=(\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"(?:^ *\|.*\n)+", re.MULTILINE)
DATA_FILE = re.compile(r"\]\(([\w./-]+\.(?:json|toml))\)")
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWING = [page for page in PAGES if BLOCK.search(page.read_text())]
FIRST = {ROOT / "README.md", *(ROOT / "docs" / name for name in ("privacy.md", "your-own-algorithm.md"))}


@pytest.fixture(autouse=True)
def _no_modules_left(tmp_path: Path) -> Iterator[None]:
    """What a page writes and imports is gone with it."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def measured(section: str) -> list[str]:
    """List the tables of a section that have several figures with decimals, outside of what is code."""
    return [
        table
        for table in TABLE.findall(section)
        if len(re.findall(r"\d\.\d", re.sub(r"`[^`]*`", "", table))) > 3
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_of_measurements_names_its_data_file(page: Path) -> None:
    """In its own section, or where the page opens."""
    opening, *sections = re.split(r"^(?=##)", page.read_text(), flags=re.MULTILINE)
    assert all((page.parent / name).exists() for name in DATA_FILE.findall(page.read_text()))
    for section in (opening, *sections):
        for table in measured(section):
            assert DATA_FILE.search(section) or DATA_FILE.search(opening), table


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page if page in FIRST else pytest.param(page, marks=pytest.mark.thorough) for page in SHOWING],
    ids=lambda page: page.name,
)
def test_what_the_documentation_shows_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_blocks(BLOCK.findall(page.read_text()), page, tmp_path, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("page", "name"),
    sorted({(page, found[1]) for page in PAGES for found in NEEDING.findall(page.read_text())}),
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_what_needs_data_of_a_name_runs_where_they_are(
    page: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.environ.get("PFLEGO_REAL_DATA")
    if not folder or find(name, data_dir=folder) is None:
        pytest.skip(f"PFLEGO_REAL_DATA names no folder with {name}")
    monkeypatch.setenv("PFLEGO_DATA", folder)
    blocks = [
        (language, code) for language, needed, code in NEEDING.findall(page.read_text()) if needed == name
    ]
    run_blocks(blocks, page, tmp_path, monkeypatch)


def run_blocks(
    blocks: list[tuple[str, str]], page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)  # as for a script in this folder
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a reader sees them, and goes on
        for language, code in blocks:
            if language == "python":
                print(f"running\n{code}")
                try:
                    exec(compile(code, page.name, "exec"), {"__name__": "__main__"})
                except MissingExtraError as missing:
                    pytest.skip(str(missing))
            else:
                for line in code.replace("\\\n", " ").splitlines():
                    if (words := shlex.split(line, comments=True)) and words[0] == "pflego":
                        print(f"running {line}")
                        command(words, monkeypatch)


def command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command line; it must end well."""
    monkeypatch.setattr(sys, "argv", words)
    try:
        main()
    except SystemExit as end:
        if end.code:
            pytest.fail(f"{shlex.join(words)} ended with {end.code}")
