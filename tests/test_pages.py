"""Pages as people find them: links that lead somewhere, pictures with their commands, versions that agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("light/*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*.ipynb")]
PICTURES = sorted(path.name for path in (ROOT / "docs").iterdir() if path.suffix in (".png", ".svg"))
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
SENTENCE = re.compile(r"[A-Z].*[.:)]")


def version_of(folder: Path) -> str:
    version: str = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    return version


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("picture", PICTURES)
def test_the_gallery_has_every_picture_with_a_sentence_and_how_it_was_made(picture: str) -> None:
    """A section shows pictures, each with its sentence, and what made them."""
    sections = re.split(r"^## ", (ROOT / "docs" / "gallery.md").read_text(), flags=re.MULTILINE)
    [section] = [section for section in sections if f"]({picture})" in section]
    after = section.split(f"]({picture})")[1].strip().splitlines()
    assert SENTENCE.match(after[0])
    assert re.search(r"^    \S|Drawn by hand", section, re.MULTILINE)


def test_the_readme_comes_to_its_first_command_within_a_screen() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert next(number for number, line in enumerate(lines) if line.startswith("    ")) <= 40


def test_both_distributions_and_the_citation_have_the_same_version() -> None:
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited
    assert version_of(ROOT) == version_of(ROOT / "light") == cited[1]
