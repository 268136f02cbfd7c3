"""A cohort over several processes: each runs its own clients, and adds up what they send.

A round costs one all-reduce, of the sum of the contributions, and one exchange of a few numbers; under a rule that
looks at each contribution these are all exchanged instead. All processes then have the same and take the server's
step themselves. A client belongs to one process for as long as the run lasts, and so does its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from pflego.engines.base import Gathered, Turn, Work
from pflego.engines.local import LocalEngine
from pflego.engines.peers import Peers
from pflego.exchange.metrics import combine
from pflego.learning.evaluation import Score
from pflego.weights import Weights, elementwise_largest, to

_CPU = torch.device("cpu")


def dealt(sizes: npt.NDArray[np.int64], peers: Peers) -> npt.NDArray[np.bool_]:
    """Say which clients are this process's: dealt out like cards, the largest first, so that all have as much to do.

    >>> dealt(np.array([10, 30, 20, 10]), Peers())
    array([ True,  True,  True,  True])
    """
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes)) % peers.size
    return np.asarray(rank == peers.rank)


@dataclass(frozen=True)
class DistributedEngine:
    """Runs a cohort here and in other processes.

    Parameters
    ----------
    local
        Runs this process's clients.
    peers
        The processes.
    own
        By position, whether a client is this process's.
    """

    local: LocalEngine
    peers: Peers
    own: npt.NDArray[np.bool_]

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        """Let the cohort's clients do their work, in all processes; the outcomes are those of this one's."""
        return self.local.run([turn for turn in turns if self.own[turn.position]], shared)

    def forms(self) -> list[Weights]:
        """Give what the first client would send: every process has its data."""
        return self.local.forms()

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        """Try every client's model, each in its process; all have the scores of all."""
        own = np.flatnonzero(self.own).tolist()
        table = torch.zeros(len(self.own), 4, dtype=torch.float64)
        for position, score in zip(own, self.local.scores(shared, adapt=adapt, only=own), strict=True):
            known = score.loss is not None
            row = [score.samples, score.score, known, score.loss or 0.0]
            table[position] = torch.tensor(row, dtype=torch.float64)
        self.peers.add(table)
        return [
            Score(int(samples), loss if known else None, score)
            for samples, score, known, loss in table.tolist()
        ]

    def pool(self, gathered: Gathered) -> Gathered:
        """Put everybody's contributions and metrics together."""
        place = self.local.problems.device
        forms = {name: (tuple(t.shape), t.dtype) for name, t in gathered.total.items()}
        parts = {p: (weight, to(c, _CPU)) for p, (weight, c) in gathered.parts.items()}
        told = replace(
            gathered,
            total={},
            parts=parts,
            largest=to(gathered.largest, _CPU),
            alone=to(gathered.alone, _CPU),
        )
        notes = self.peers.gather((told, forms))
        everybodys = [note for note, _ in notes]
        merged = {p: part for note in everybodys for p, part in note.parts.items()}
        return Gathered(
            parts={p: (weight, to(c, place)) for p, (weight, c) in sorted(merged.items())},
            total=self._sum(gathered.total, {name: form for _, own in notes for name, form in own.items()}),
            largest=to(elementwise_largest([note.largest for note in everybodys]), place),
            weight=sum(note.weight for note in everybodys),
            answered=sum(note.answered for note in everybodys),
            rejected=[client for note in everybodys for client in note.rejected],
            arrived=sum(note.arrived for note in everybodys),
            heard=[client for note in everybodys for client in note.heard],
            losses={p: loss for note in everybodys for p, loss in sorted(note.losses.items())},
            metrics=combine(note.metrics for note in everybodys),
            seconds=max(note.seconds for note in everybodys),
            alone=to({name: one for note in everybodys for name, one in note.alone.items()}, place),
        )

    def _sum(self, own: Weights, forms: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> Weights:
        """Add up in float64, where rounding hardly depends on who adds up what."""
        if not forms:
            return {}
        device = self.local.problems.device
        zero = torch.zeros((), dtype=torch.float64, device=device if device.type == "cuda" else _CPU)
        names = sorted(forms)
        parts = [own[name].to(zero) if name in own else zero.new_zeros(forms[name][0]) for name in names]
        flat = torch.cat([part.flatten() for part in parts])
        self.peers.add(flat)
        sums = torch.split(flat, [part.numel() for part in parts])
        return {
            name: part.view(forms[name][0]).to(device=device, dtype=forms[name][1])
            for name, part in zip(names, sums, strict=True)
        }
