"""The client's modules by themselves, by node's own test runner."""

from __future__ import annotations

import subprocess

from tests.support.tabs import NODE, WEB, needs_node


@needs_node
def test_modules() -> None:
    assert NODE
    words = [NODE, "--test", "test/"]
    done = subprocess.run(words, cwd=WEB, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
