from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pflego.cli import app
from pflego.settings.tables import read_settings
from tests.support.afterwards import assert_refused

pytest.importorskip("optuna", reason="optuna is not installed: pip install 'pflego[search]'")

SMALL = ["--clients", "5", "--rounds", "3", "--steps", "4", "--participation", "2"]
OVER = ["--over", "server_lr=1e-4:1e-1:log", "--over", "steps=2:6"]


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["tune", *words], catch_exceptions=False, env={"COLUMNS": "120"})


def test_a_search_ends_in_a_table_and_in_settings_to_run(tmp_path: Path) -> None:
    out = tmp_path / "tuning"
    result = invoke(*SMALL, *OVER, "--trials", "3", "--out", str(out))
    assert result.exit_code == 0
    assert "3 trials, 0 of them ended early" in result.stdout
    assert "validation accuracy" in result.stdout
    assert f"train with the best: pflego run {out / 'best.toml'}" in result.stdout
    for number in (1, 2, 3):
        assert f"trial {number} of 3: " in result.stderr
    assert {path.name for path in out.iterdir()} == {
        "best.toml",
        "trials.csv",
        "trials.json",
        "tuning.png",
    }
    best = read_settings(out / "best.toml")
    assert isinstance(best["steps"], int)
    assert 2 <= best["steps"] <= 6
    run = CliRunner().invoke(app, ["run", str(out / "best.toml"), "--out", str(tmp_path / "run")])
    assert run.exit_code == 0
    kept = read_settings(tmp_path / "run" / "settings.toml")
    assert kept.items() >= best.items() - {("participation", 2)}


def test_the_same_command_goes_on(tmp_path: Path) -> None:
    words = [*SMALL, *OVER, "--out", str(tmp_path)]
    invoke(*words, "--trials", "1")
    again = invoke(*words, "--trials", "2")
    assert "trial 2 of 2" in again.stderr
    assert "trial 1 of 2" not in again.stderr
    assert "2 trials" in again.stdout


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pflego.tuning._Watch.on_round", interrupt)
    result = invoke(*SMALL, *OVER, "--trials", "2", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "stopped; the same command goes on from here" in result.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--over", "server_lr"], "does not say what to try"),
        (["--over", "server_lrr=1:2"], "did you mean 'server_lr'"),
        (["--over", "rounds=1:2"], "rounds must be the same in all trials"),
        (["--over", "steps=0:2"], "steps must be a whole number above 0"),
        (["--trials", "0"], "trials must be a whole number above 0"),
        (["--hold-out", "0"], "share held out must lie between 0 and 1"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert_refused(["tune", *SMALL, *words, "--out", tmp_path / "out"], reason, monkeypatch, capfd)
    assert not (tmp_path / "out").exists()
