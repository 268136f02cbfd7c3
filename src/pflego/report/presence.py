"""Who took part when: a picture of rounds and clients, in cells that hold several of each where there are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pflego.runs.run import Run

ROWS, COLUMNS = 60, 150  # cells that a person can tell apart
_DRAWN = 2_000_000  # participations that are drawn again within seconds


@dataclass(frozen=True)
class Presence:
    """Who took part when."""

    everyone: bool  # took part in every round: there is nothing to see
    # a row some clients, a column some rounds: of the members, the share that took part; None: none of them was one
    shares: Sequence[Sequence[float | None]]
    clients_a_row: int = 1
    rounds_a_column: int = 1


def who_took_part(run: Run) -> tuple[Sequence[int] | None, Presence]:
    """Draw the cohorts again: in how many rounds every client took part, and the picture.

    None and an empty picture where they are too many to draw.
    """
    clients, rounds = len(run.federation), len(run.history)
    asked = [int(row.get("participants") or 0) for row in run.history]
    changing = run.plan.population is not None
    if all(number == clients for number in asked):
        return [rounds] * clients, Presence(True, [])
    if sum(asked) > _DRAWN or clients > _DRAWN:
        return None, Presence(False, [])
    tall, wide = -(-clients // ROWS), -(-rounds // COLUMNS)  # of a cell
    visits = np.zeros(clients, dtype=int)
    cells = np.zeros((-(-clients // tall), -(-rounds // wide)))
    there = np.zeros_like(cells)
    for column, row in enumerate(run.history):
        if changing:
            members = np.flatnonzero(run.plan.there(int(row["round"] or 0), run.federation.ids))
            there[:, column // wide] += np.bincount(members // tall, minlength=len(cells))
        ids = run.participants(int(row["round"] or 0))
        cohort = np.array([run.federation.position(client_id) for client_id in ids], dtype=int)
        visits[cohort] += 1
        cells[:, column // wide] += np.bincount(cohort // tall, minlength=len(cells))
    heights, widths = (np.bincount(np.arange(n) // size) for n, size in ((clients, tall), (rounds, wide)))
    if not changing:
        there = np.outer(heights, widths).astype(np.float64)
    shares = np.round(cells / np.maximum(there, 1), 3)
    known = [
        [share if some else None for share, some in zip(row, here, strict=True)]
        for row, here in zip(shares.tolist(), there.tolist(), strict=True)
    ]
    return visits.tolist(), Presence(False, known, tall, wide)
