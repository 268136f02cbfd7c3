"""A run that takes no time, whole or interrupted where its log is ahead of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pflego
from pflego.runs.history import HistoryRow
from pflego.trackers import Tracker
from tests.support.reference import world

ROUNDS = 8
EVALUATED = [2, 4, 6, 8]


class Stop(pflego.Callback):
    """Somebody presses Ctrl-C after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round(self, run: pflego.Run, row: HistoryRow) -> None:
        if row["round"] == self.after:
            raise KeyboardInterrupt


def train(
    out: Path | None, *callbacks: pflego.Callback, rounds: int = ROUNDS, resume: bool = False
) -> pflego.Run:
    twin = world(dtype=torch.float32)
    return pflego.train(
        twin.federation,
        twin.model,
        pflego.PFLEGO(steps=3),
        rounds=rounds,
        participation=3,
        evaluate_every=2,
        checkpoint_every=3,
        out=out,
        resume=resume,
        callbacks=callbacks,
    )


def interrupted(out: Path, first: Tracker, then: Tracker) -> pflego.Run:
    """Stopped after round 5, two beyond the checkpoint; then resumed to the end."""
    with pytest.raises(KeyboardInterrupt):
        train(out, first, Stop(5))
    return train(out, then, resume=True)
