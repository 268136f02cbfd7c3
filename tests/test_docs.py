"""Every Python block and every pflego command in the README and docs/ runs, page by page, each in an empty folder."""

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
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _no_modules_left(tmp_path: Path) -> Iterator[None]:
    """What a page writes and imports is gone with it."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


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
