"""A run of many rounds as it lies in its folder, written by the folder itself without training all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import pflego
from pflego.federation.roster import ClientId
from pflego.runs.folder import RunFolder
from pflego.training.train import may_change
from pflego.weights import Weights

_PARTICIPANTS = 20
_EVERY = 10  # rounds between checkpoints, and between evaluations of everyone


class LongRun:
    """A run whose first rounds are trained, and whose others are written down like them.

    Parameters
    ----------
    path
        Where.
    rounds, clients
        How many of each.
    """

    def __init__(self, path: Path, *, rounds: int, clients: int) -> None:
        self.path = path
        self._rounds = rounds
        rng = np.random.default_rng(0)
        self._federation = pflego.Federation(
            [
                pflego.Client(
                    i, rng.random((10, 16)), np.arange(10) % 2, rng.random((6, 16)), np.arange(6) % 2
                )
                for i in range(clients)
            ]
        )
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(16, 200), nn.ReLU()).double()
        self._model = pflego.Model(backbone, features=200)
        run = self._train(_EVERY, resume=False)
        rows, figures = run.history, run.evaluations[_EVERY]
        folder = RunFolder(path, free=may_change())
        with folder.held():
            folder.resume(folder.settings())
            changed: dict[ClientId, Weights] = {}
            for number in range(_EVERY + 1, rounds + 1):
                row = {**rows[number % _EVERY], "round": number}
                drawn = rng.permutation(clients)[:_PARTICIPANTS].tolist()
                changed |= {i: {name: w + number for name, w in run.states[i].items()} for i in drawn}
                folder.append(row, figures if number % _EVERY == 0 else None)
                if number % _EVERY == 0:
                    folder.save(number, run.shared, {}, changed, rejected={}, silent={})
                    changed.clear()

    def open(self) -> pflego.Run:
        """Read all of it."""
        return pflego.open_run(self.path, federation=self._federation, model=self._model)

    def resume(self) -> pflego.Run:
        """Make it ready to go on, where no round is left."""
        return self._train(self._rounds, resume=True)

    def bytes(self) -> int:
        """Add up the files of the checkpoint, but for the history of clients' results."""
        inner = self.path / "checkpoint"
        return sum(
            file.stat().st_size for file in inner.rglob("*") if file.is_file() and file.suffix != ".jsonl"
        )

    def history_bytes(self) -> int:
        """Add up the files that have a line per round, or per evaluation."""
        return sum(file.stat().st_size for file in self.path.rglob("*.jsonl"))

    def _train(self, rounds: int, *, resume: bool) -> pflego.Run:
        return pflego.train(
            self._federation,
            self._model,
            pflego.PFLEGO(steps=5),
            rounds=rounds,
            participation=_PARTICIPANTS,
            evaluate_every=_EVERY,
            checkpoint_every=_EVERY,
            out=self.path,
            resume=resume,
            progress=False,
        )
