from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pflego.runs.history import HistoryRow
from pflego.trackers import CSV
from tests.support.tracked import EVALUATED, interrupted, train


def read(path: Path) -> list[HistoryRow]:
    """The rows of a table, an empty field being no figure."""
    with path.open(newline="") as file:
        return [{key: float(text) for key, text in row.items() if text != ""} for row in csv.DictReader(file)]


def known(history: list[HistoryRow]) -> list[HistoryRow]:
    return [{key: value for key, value in row.items() if value is not None} for row in history]


def test_the_table_is_the_history(tmp_path: Path) -> None:
    run = train(tmp_path / "run", CSV())
    rows = read(tmp_path / "run" / "metrics.csv")
    assert rows == known(run.history)
    assert [row["round"] for row in rows if "everyone_accuracy" in row] == EVALUATED


def test_a_resumed_run_has_every_round_once(tmp_path: Path) -> None:
    run = interrupted(tmp_path / "run", CSV(tmp_path / "a.csv"), CSV(tmp_path / "a.csv"))
    assert read(tmp_path / "a.csv") == known(run.history)


def test_a_run_tracked_late_is_tracked_from_its_first_round(tmp_path: Path) -> None:
    train(tmp_path, rounds=3)
    run = train(tmp_path, CSV(), resume=True)
    assert read(tmp_path / "metrics.csv") == known(run.history)


@pytest.mark.parametrize("earlier", ["left by another run\n", "round,loss\n1,2\n"])
def test_a_new_run_takes_the_place_of_the_one_before(tmp_path: Path, earlier: str) -> None:
    (tmp_path / "a.csv").write_text(earlier)
    run = train(None, CSV(tmp_path / "a.csv"), rounds=2)
    assert read(tmp_path / "a.csv") == known(run.history)
