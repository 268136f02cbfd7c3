from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pflego.cli import app, main
from pflego.settings.experiment import Experiment


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of small runs, a method each."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("pflego", "fedavg"):
        settings = {"algorithm": method, "clients": 5, "rounds": 3, "steps": 2, "participation": "2"}
        Experiment.build({**settings, "out": str(folder / method)}).train()
    return {method: folder / method for method in ("pflego", "fedavg")}


def invoke(*words: object) -> Result:
    result = CliRunner().invoke(app, ["report", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


def data(page: Path) -> dict[str, Any]:
    """What a page shows."""
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL
    )
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_a_run_s_page_is_in_its_folder(runs: dict[str, Path]) -> None:
    page = runs["pflego"] / "report.html"
    assert invoke(runs["pflego"]).stdout == f"to look at: {page}\n"
    shown = data(page)
    assert shown["title"] == "PFLEGO on digits"
    assert shown["class_names"] == {str(digit): str(digit) for digit in range(10)}
    history = [json.loads(line) for line in (runs["pflego"] / "metrics.jsonl").read_text().splitlines()]
    losses = [value for _, value in shown["runs"][0]["curves"]["loss"]]
    assert losses == pytest.approx([row["loss"] for row in history], rel=1e-4)


def test_learning_alone_is_tried_or_not_as_asked(runs: dict[str, Path], tmp_path: Path) -> None:
    invoke(runs["fedavg"], "--no-alone", "--out", tmp_path / "a.html")
    assert data(tmp_path / "a.html")["runs"][0]["clients"]["alone"] is None
    assert not (runs["fedavg"] / "checkpoint" / "alone.json").exists()
    invoke(runs["fedavg"], "--alone", "--out", tmp_path / "b.html")
    figures = data(tmp_path / "b.html")["runs"][0]["clients"]["alone"]
    kept = json.loads((runs["fedavg"] / "checkpoint" / "alone.json").read_text())
    assert [None if f is None else pytest.approx(f / 100, rel=1e-4) for f in figures] == kept["figures"]


def test_runs_are_put_side_by_side(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(*runs.values(), "--no-alone").stdout == "to look at: compare.html\n"
    shown = data(tmp_path / "compare.html")
    assert [run["name"] for run in shown["runs"]] == ["PFLEGO", "FedAvg"]
    assert shown["same_clients"]


@pytest.mark.parametrize("words", [["nowhere"], ["PFLEGO", "nowhere"]])
def test_a_folder_without_a_run_is_refused(
    words: list[str],
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [str(runs["pflego"]) if word == "PFLEGO" else word for word in words]
    monkeypatch.setattr(sys, "argv", ["pflego", "report", *folders])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capfd.readouterr().err == "pflego: nowhere holds no run\n"
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_is_missing_is_named(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    monkeypatch.setattr(
        sys, "argv", ["pflego", "report", str(runs["pflego"]), "--out", str(tmp_path / "a.html")]
    )
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capfd.readouterr().err == "pflego: for a report: pip install 'pflego[report]'\n"
