"""The site: it builds without a warning, has every public name, fetches nothing from elsewhere, and can be searched."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import pflego

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium")
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """What a page has by name, and what a browser fetches to show it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        self.fetched.add(given.get(FETCHED.get(tag, "")) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", "website", "--doctree-dir"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(folder / "trees"), ".", str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.thorough
def test_everything_that_pflego_offers_is_in_the_reference(site: Path) -> None:
    ids = {one for path in (site / "website" / "reference").glob("*.html") for one in Page(path).ids}
    for name in dir(pflego):
        wanted = f"pflego-{name}" if isinstance(getattr(pflego, name), ModuleType) else f"pflego.{name}"
        assert wanted in ids


@pytest.mark.thorough
def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for path in pages:
        assert [address for address in Page(path).fetched if re.match(r"(\w+:)?//", address)] == [], path
    for path in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(\w+:)?//", path.read_text()), path


@pytest.mark.thorough
def test_the_version_stands_on_every_page_and_the_folder_opens_at_the_readme(site: Path) -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"pflego {version[1]}" in (site / "docs" / "guide.html").read_text()
    assert "url=README.html" in (site / "index.html").read_text()


@pytest.mark.thorough
@pytest.mark.skipif(not BROWSER, reason="needs chromium")
def test_search_works_from_a_disk(site: Path, tmp_path: Path) -> None:
    address = (site / "search.html").as_uri() + "?q=Krum"
    asked = [str(BROWSER), *FLAGS.split(), f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000"]
    shown = subprocess.run([*asked, "--dump-dom", address], capture_output=True, text=True, check=True)
    found = re.findall(r'<a href="([^"#?]+)', shown.stdout.split('id="search-results"')[1])
    assert "docs/robustness.html" in found
    assert "website/reference/exchange.html" in found


def test_everything_that_pflego_offers_says_what_it_is_for() -> None:
    for name in dir(pflego):
        value = getattr(pflego, name)
        own = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
        assert own, name
        assert own[0].strip(), name
