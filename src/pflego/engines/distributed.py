"""A cohort over several processes: each runs its own clients, and adds up what they send.

A round costs one all-reduce, of the sum of the messages and a few figures a process. All processes then have the
same reply and take the server's step themselves. A client belongs to one process for as long as the run lasts, and
so does its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from pflego.algorithms.base import Reply, Round
from pflego.engines.base import Outcome, Tally
from pflego.engines.local import LocalEngine
from pflego.errors import UserError
from pflego.evaluation import Score
from pflego.peers import Peers
from pflego.weights import Weights, to, weighted_sum


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

    def run(self, round: Round, shared: Weights, cohort: Sequence[int]) -> list[Outcome]:
        """Let the cohort's clients do their work, in all processes; the outcomes are those of this one's."""
        return self.local.run(round, shared, [position for position in cohort if self.own[position]])

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

    def pool(
        self, shared: Weights, replies: Mapping[int, Reply], tally: Tally
    ) -> tuple[dict[int, Reply], Tally]:
        """Put everybody's replies and figures together: one reply stands for all, where the method allows it."""
        return (self._sum if self.local.algorithm.linear else self._gather)(shared, replies, tally)

    def _sum(
        self, shared: Weights, replies: Mapping[int, Reply], tally: Tally
    ) -> tuple[dict[int, Reply], Tally]:
        problems = self.local.problems
        place = problems.device if problems.device.type == "cuda" else torch.device("cpu")
        # in float64, where counts stay exact and rounding hardly depends on who adds up what
        zero = torch.zeros((), dtype=torch.float64, device=place)
        total = weighted_sum(
            (reply.samples, {name: tensor.to(zero) for name, tensor in reply.message.items()})
            for reply in replies.values()
        )
        if foreign := sorted(total.keys() - shared.keys()):
            raise UserError(
                f"{self.local.algorithm.name} sends {', '.join(foreign)}, which are no shared weights: "
                "its messages cannot be added up, so its `linear` must be False"
            )
        parts = [
            total[name] if name in total else zero.new_zeros(weight.shape) for name, weight in shared.items()
        ]
        mine = _Figures(
            tally,
            samples=sum(reply.samples for reply in replies.values()),
            first=min(replies, default=len(self.own)),
            sent=[name in total for name in shared],
        ).row()
        rows = zero.new_zeros(self.peers.size, len(mine))  # one a process
        rows[self.peers.rank] = zero.new_tensor(mine)
        flat = torch.cat([part.flatten() for part in (*parts, rows)])
        self.peers.add(flat)
        *sums, told = torch.split(flat, [part.numel() for part in (*parts, rows)])
        everybodys = [_Figures.read(row) for row in told.view_as(rows).tolist()]
        pooled = sum((each.tally for each in everybodys), Tally())
        if not pooled.arrived:
            return {}, pooled
        samples, first = sum(each.samples for each in everybodys), min(each.first for each in everybodys)
        message = {
            name: (part / samples).view_as(weight).to(weight)
            for (name, weight), part, *sent in zip(
                shared.items(), sums, *(each.sent for each in everybodys), strict=True
            )
            if any(sent)
        }
        return {first: Reply(problems.federation.ids[first], samples, message)}, pooled

    def _gather(
        self, shared: Weights, replies: Mapping[int, Reply], tally: Tally
    ) -> tuple[dict[int, Reply], Tally]:
        """As a method needs it that looks at each message by itself."""
        told = self.peers.gather((_moved(replies, torch.device("cpu")), tally))
        everybodys = {position: reply for part, _ in told for position, reply in part.items()}
        pooled = sum((part for _, part in told), Tally())
        return _moved(dict(sorted(everybodys.items())), self.local.problems.device), pooled


def _moved(replies: Mapping[int, Reply], device: torch.device) -> dict[int, Reply]:
    return {p: replace(reply, message=to(reply.message, device)) for p, reply in replies.items()}


@dataclass(frozen=True)
class _Figures:
    """What a process tells of itself, beside its part of the sum."""

    tally: Tally
    samples: int  # behind its replies
    first: int  # the position of the first of their clients
    sent: Sequence[bool]  # which of the shared weights they name

    def row(self) -> list[float]:
        """As numbers of one kind."""
        return [*astuple(self.tally), self.samples, self.first, *self.sent]

    @classmethod
    def read(cls, row: Sequence[float]) -> _Figures:
        """From such numbers."""
        zeros = astuple(Tally())
        tally = Tally(*(type(zero)(value) for zero, value in zip(zeros, row, strict=False)))
        samples, first, *sent = row[len(zeros) :]
        return cls(tally, int(samples), int(first), [bool(flag) for flag in sent])
