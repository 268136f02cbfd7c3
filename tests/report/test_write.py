from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import pflego
from tests.support.reported import ODD, run


def test_a_report_is_one_page_that_holds_all_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    assert run(ids=ODD).report(path, alone=False) == path
    page = path.read_text()
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert page.count("</script>") == page.count("<script") == 3  # the library, the data, the page's own
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=\"(?!data:)", page)
    assert "default-src 'none'" in page
    assert ODD[0] not in page


def test_without_plotly_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pflego\[report\]'"):
        run().report(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(pflego.FolderError, match="cannot write"):
        run().report(tmp_path / "file" / "report.html", alone=False)
