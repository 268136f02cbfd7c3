"""Every Python block and every pflego command in the README and docs/ runs: a process a page, in an empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda p: p.name
)
def test_what_the_documentation_shows_runs(page: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, __file__, str(page)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, f"{page.name}\n{done.stdout[-2000:]}\n{done.stderr}"


def run(page: Path) -> None:
    """Run a page from top to bottom, each block and each command as if in a process of its own."""
    for language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            print(f"running\n{code}")
            exec(compile(code, page.name, "exec"), {"__name__": "__main__"})
        else:
            for line in code.replace("\\\n", " ").splitlines():
                if (words := shlex.split(line, comments=True)) and words[0] == "pflego":
                    print(f"running {line}")
                    command(words)


def command(words: list[str]) -> None:
    """Run a command line; it must end well."""
    from pflego.cli import main

    sys.argv = words
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    run(Path(sys.argv[1]))
