from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pflego
from pflego.cli import app, main
from pflego.runs.history import HistoryRow
from pflego.settings.experiment import Experiment
from pflego.settings.tables import read_settings
from pflego.trackers import CSV, TrackerWarning, WandB, begun, choose
from tests.support.tracked import ROUNDS, Stop, train

SMALL = {"clients": 6, "rounds": 4, "steps": 3, "participation": "2"}


class Remove(pflego.Callback):
    """Takes a folder away after the third round, as a disk that goes away would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_round(self, run: pflego.Run, row: HistoryRow) -> None:
        if row["round"] == 3:
            shutil.rmtree(self.folder)


def test_a_log_that_fails_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    with pytest.warns(TrackerWarning, match="csv log has failed and goes no further; the run does") as said:
        run = train(tmp_path / "run", CSV(tmp_path / "logs" / "a.csv"), Remove(tmp_path / "logs"))
    assert len(said) == 1
    assert len(run.history) == ROUNDS


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_a_full_disk_does_not_stop_the_run() -> None:
    with pytest.warns(TrackerWarning, match="No space left on device") as said:
        run = train(None, CSV("/dev/full"))
    assert len(said) == 1
    assert len(run.history) == ROUNDS


def test_a_log_that_failed_is_whole_again_after_the_run_is_resumed(tmp_path: Path) -> None:
    with pytest.warns(TrackerWarning), pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", CSV(tmp_path / "logs" / "a.csv"), Remove(tmp_path / "logs"), Stop(6))
    train(tmp_path / "run", CSV(tmp_path / "logs" / "a.csv"), resume=True)
    assert len((tmp_path / "logs" / "a.csv").read_text().splitlines()) == 1 + ROUNDS


def test_a_log_needs_a_place() -> None:
    with pytest.raises(pflego.UserError, match=r"say where the csv log goes, or give the run a folder: out="):
        train(None, CSV())


def test_a_tracker_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(pflego.UserError, match=r"pip install 'pflego\[wandb\]'"):
        WandB()


def test_trackers_are_chosen_by_a_list_or_a_text() -> None:
    assert [tracker.name for tracker in choose("csv, TensorBoard,csv")] == ["csv", "tensorboard"]
    assert [tracker.name for tracker in choose(["csv"])] == ["csv"]
    assert choose("") == choose([]) == []
    with pytest.raises(pflego.UserError, match="unknown tracker 'tensorbord': did you mean 'tensorboard'"):
        choose("csv,tensorbord")
    for wrong in (3, ["csv", 3], {"csv": 1}):
        with pytest.raises(pflego.UserError, match="track must be a list of tensorboard, mlflow, wandb, csv"):
            choose(wrong)


def test_what_tracks_a_run_is_no_part_of_it(tmp_path: Path) -> None:
    given = {**SMALL, "out": str(tmp_path / "run")}
    Experiment.build({**given, "rounds": 2, "track": ["csv"]}).train(progress=False)
    assert "track" not in read_settings(tmp_path / "run" / "settings.toml")
    Experiment.build({**given, "track": "tensorboard"}).train(resume=True, progress=False)
    assert begun(tmp_path / "run") == ["tensorboard", "csv"]
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 3


def test_a_resumed_run_keeps_the_logs_it_has(tmp_path: Path) -> None:
    given = {**SMALL, "out": str(tmp_path / "run")}
    Experiment.build({**given, "rounds": 2, "track": "csv"}).train(progress=False)
    Experiment.build(given).train(resume=True, progress=False)
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 5
    assert begun(tmp_path / "run") == ["csv"]


def test_the_command_line_tracks_and_a_settings_file_does(tmp_path: Path) -> None:
    def run(*words: str) -> Path:
        out = tmp_path / f"run-{len(words)}"
        small = [f"--{name}={value}" for name, value in SMALL.items()]
        result = CliRunner().invoke(app, ["run", *words, *small, "--out", str(out)], catch_exceptions=False)
        assert result.exit_code == 0
        return out

    (tmp_path / "settings.toml").write_text('track = ["csv"]\n')
    assert begun(run("--track", "csv,tensorboard")) == ["tensorboard", "csv"]
    assert begun(run(str(tmp_path / "settings.toml"))) == ["csv"]


@pytest.mark.parametrize(
    ("track", "reason"),
    [("csv,tensorbord", "did you mean 'tensorboard'"), ("csv,wandb", "pip install 'pflego[wandb]'")],
)
def test_the_command_line_refuses_a_tracker_before_anything_runs(
    track: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(sys, "argv", ["pflego", "run", "--track", track, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as exit:
        main()
    said = capfd.readouterr().err
    assert exit.value.code == 2
    assert said.count("\n") == 1
    assert reason in said
    assert not (tmp_path / "run").exists()


def test_a_wrong_tracker_is_refused_before_data_are_loaded() -> None:
    with pytest.raises(pflego.UserError, match="unknown tracker"):
        Experiment.build({**SMALL, "track": "excel", "data": "no-such-data"})
