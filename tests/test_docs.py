"""What the README and docs/ show runs, page by page, each in an empty folder; what they measured has a data file."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from pflego.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLE = re.compile(r"(?:^ *\|.*\n)+", re.MULTILINE)
DATA_FILE = re.compile(r"\]\(([\w./-]+\.(?:json|toml))\)")
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


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
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda p: p.name
)
def test_what_the_documentation_shows_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for a script in this folder
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a reader sees them, and goes on
        for language, code in BLOCK.findall(page.read_text()):
            if language == "python":
                print(f"running\n{code}")
                exec(compile(code, page.name, "exec"), {"__name__": "__main__"})
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
