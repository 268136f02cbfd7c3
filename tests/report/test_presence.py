from __future__ import annotations

import numpy as np
import pytest

import pflego
from pflego.report import presence
from pflego.report.presence import Presence, who_took_part
from tests.support.reported import run


def test_a_cell_is_a_client_and_a_round() -> None:
    trained = run(rounds=5)
    visits, picture = who_took_part(trained)
    wanted = [[float(id in trained.participants(t)) for t in range(1, 6)] for id in "abcd"]
    assert picture == Presence(False, wanted)
    assert visits == [sum(row) for row in wanted]
    assert sum(visits) == 10


def test_where_there_are_many_a_cell_is_the_share_that_took_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "ROWS", 2)
    monkeypatch.setattr(presence, "COLUMNS", 2)
    trained = run(ids=["a", "b", "c"], rounds=5)
    _, picture = who_took_part(trained)
    single = np.array([[id in trained.participants(t) for t in range(1, 6)] for id in "abc"], dtype=float)
    assert (picture.clients_a_row, picture.rounds_a_column) == (2, 3)
    assert picture.shares == [
        [round(float(part.mean()), 3) for part in (rows[:, :3], rows[:, 3:])]
        for rows in (single[:2], single[2:])
    ]


def test_where_everyone_always_takes_part_there_is_nothing_to_see() -> None:
    visits, picture = who_took_part(run(participation=4, rounds=3))
    assert picture == Presence(True, [])
    assert visits == [3, 3, 3, 3]


def test_too_many_are_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_DRAWN", 11)
    trained = run(rounds=6)
    assert sum(row["participants"] or 0 for row in trained.history) == 12
    assert who_took_part(trained) == (None, Presence(False, []))


def test_who_joined_later_took_part_later() -> None:
    trained = run(participation=4, rounds=2)
    late = pflego.Client("late", np.ones((4, 3), np.float32), np.arange(4) % 2)
    visits, _ = who_took_part(trained.join(late, alone=0).run)
    assert visits == [2, 2, 2, 2, 0]
