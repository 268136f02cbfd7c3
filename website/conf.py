"""The site: the repository's own pages, as they are, and the reference made from docstrings. `make docs` builds it.

The source folder is the root, so that links that work on a code host work here too. Nothing is fetched from elsewhere
when a page is read, and search needs no server.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "website"), str(ROOT / "src")]

_project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
project = "pflego"
release = version = _project["version"]
copyright = f"the authors of pflego; {_project['license']}"  # noqa: A001
html_title = f"pflego {release}"

root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/*.ipynb", "website/reference/*.rst"]
exclude_patterns = [
    path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in ("docs", "website")
]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstrings",
    "notebooks",
    "reference",
]

myst_heading_anchors = 3  # named as code hosts name them
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # the changelog's headings repeat

autodoc_typehints = "none"  # docstrings.py says in words what a setting may be
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_attr_annotations = False
default_role = "code"
maximum_signature_line_length = 100
add_module_names = False
smartquotes = False  # options begin with two hyphens
highlight_language = "text"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["pflego.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2b6cb0", "color-brand-content": "#2b6cb0"},
    "dark_css_variables": {"color-brand-primary": "#7db4ea", "color-brand-content": "#7db4ea"},
}
pygments_style = "tango"
pygments_dark_style = "github-dark"

PURPOSE = re.compile(r"^- \*\*(\w+)\*\*: ((?:.*\n)(?:  .*\n)*)", re.MULTILINE)
LINK = re.compile(r"\[([^]]+)\]\(([\w/.-]+)\.(?:md|ipynb)\)")
REFERENCE = ("training", "methods", "participation", "exchange", "extending", "errors", "modules", "commands")


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Make the navigation of the README's own lists: a page nobody can find there is a warning."""
    if page != root_doc:
        return
    parts = [(purpose, LINK.findall(links)) for purpose, links in PURPOSE.findall(source[0])]
    parts.append(("Reference", [("", f"website/reference/{name}") for name in REFERENCE]))
    for purpose, links in parts:
        lines = [f"{title[:1].upper()}{title[1:]} <{path}>" if title else path for title, path in links]
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", f":caption: {purpose}", "", *lines, "```", ""])


def open_at_the_readme(app: Sphinx, failure: Exception | None) -> None:
    """Let whoever opens the folder arrive."""
    if failure is None:
        (Path(app.outdir) / "index.html").write_text(
            '<!doctype html><meta charset="utf-8"><title>pflego</title>'
            '<meta http-equiv="refresh" content="0; url=README.html"><a href="README.html">pflego</a>\n'
        )


def setup(app: Sphinx) -> None:
    """Connect what is special about this site."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", open_at_the_readme)
