from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pflego
from pflego.runs.history import HistoryRow
from pflego.trackers import WandB
from tests.support.extras import later
from tests.support.tracked import EVALUATED, ROUNDS, interrupted, train

if TYPE_CHECKING:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

wandb = later("wandb", reason="wandb is not installed: pip install 'pflego[wandb]'")

_BLOCK = 32768  # a W&B file is a LevelDB log: records in parts, none of which crosses the end of a block
_FILE_HEADER, _HEADER = 7, 7
_WHOLE, _LAST = 1, 4  # the kinds of part that end a record


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is sent anywhere, and no helper process is left behind."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    yield
    wandb.teardown()


def records(file: Path) -> Iterator[Record]:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    content, at, parts = file.read_bytes(), _FILE_HEADER, b""
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + _HEADER : at + _HEADER + size]
        at += _HEADER + size
        if kind in (_WHOLE, _LAST):
            yield Record.FromString(parts)
            parts = b""


class Log:
    """All that the files of a run hold, in the order they were made."""

    def __init__(self, folder: Path) -> None:
        wandb.teardown()  # a process of its own writes the files, and they are whole when it is gone
        files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime)
        all = [record for file in files for record in records(file)]
        self.ids = {record.run.run_id for record in all if record.HasField("run")}
        self.projects = {record.run.project for record in all if record.HasField("run")}
        self.config = {
            item.key: json.loads(item.value_json)
            for record in all
            if record.HasField("run")
            for item in record.run.config.update
        }
        self.history = [
            {
                ".".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            for record in all
            if record.HasField("history")
        ]
        self.summary = {
            item.key: json.loads(item.value_json)
            for record in all
            if record.HasField("summary")
            for item in record.summary.update
        }
        self.exits = [record.exit.exit_code for record in all if record.HasField("exit")]

    def steps(self, key: str) -> list[int]:
        return [row["_step"] for row in self.history if key in row]


def test_a_run_has_its_figures_settings_and_clients(tmp_path: Path) -> None:
    run = train(None, WandB(tmp_path))
    log = Log(tmp_path)
    assert log.projects == {"pflego"}
    assert log.config["algorithm"] == "pflego"
    assert log.config["steps"] == 3
    assert log.steps("loss") == list(range(1, ROUNDS + 1))
    assert [row["loss"] for row in log.history] == [row["loss"] for row in run.history]
    assert log.steps("everyone_accuracy") == EVALUATED
    assert log.steps("clients_accuracy.bins") == EVALUATED
    assert [sum(row["clients_accuracy.values"]) for row in log.history[1::2]] == [5, 5, 5, 5]
    assert log.summary["final/everyone"] == run.history[-1]["everyone_accuracy"]
    assert log.exits == [0]


def test_a_resumed_run_goes_on_under_the_same_id_with_every_round_once(tmp_path: Path) -> None:
    interrupted(tmp_path, WandB(), WandB(project="other"))
    log = Log(tmp_path)
    assert len(log.ids) == 1
    assert log.steps("loss") == list(range(1, ROUNDS + 1))
    assert log.exits == [1, 0]


def test_a_round_counts_as_logged_when_it_must_be_on_disk(tmp_path: Path) -> None:
    noted = []

    class Look(pflego.Callback):
        def on_round(self, run: pflego.Run, row: HistoryRow) -> None:
            noted.append(json.loads((tmp_path / "wandb" / "pflego.json").read_text())["round"])

    train(tmp_path, WandB(), Look(), rounds=3)
    assert noted == [0, 0, 0]
    assert json.loads((tmp_path / "wandb" / "pflego.json").read_text())["round"] == 3


def test_two_runs_with_a_log_in_one_place_are_two(tmp_path: Path) -> None:
    for _ in range(2):
        train(None, WandB(tmp_path), rounds=2)
    log = Log(tmp_path)
    assert len(log.ids) == 2
    assert log.steps("loss") == [1, 2, 1, 2]
