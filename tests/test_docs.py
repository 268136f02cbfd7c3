"""Every Python block and every pflego command in the README and docs/ runs."""

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


@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda p: p.name
)
def test_what_the_documentation_shows_runs(page: Path, tmp_path: Path) -> None:
    for language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            commands = [["-c", code]]
        else:
            lines = [shlex.split(line, comments=True) for line in code.replace("\\\n", " ").splitlines()]
            commands = [["-m", *words] for words in lines if words and words[0] == "pflego"]
        for command in commands:
            done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{page.name}: {' '.join(command)}\n{done.stderr}"
