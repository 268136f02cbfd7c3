"""Client work at the clients' own sites, of which the server sees sums alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pflego.deploy.flower.engine import FlowerEngine
from pflego.deploy.flower.messages import ALWAYS, Moment
from pflego.deploy.flower.secure.content import (
    CLIPPED,
    PASSES,
    SCORE,
    contribution_of,
    metrics_of,
    question_of,
    score_of,
    summable,
)
from pflego.deploy.flower.secure.rounds import SecureSums, Standing, Summed, Wanted
from pflego.engines.base import Outcome, Turn, Work
from pflego.engines.rehearsal import Rehearsed
from pflego.exchange.metrics import How
from pflego.exchange.privacy import ClientPrivacy
from pflego.learning.evaluation import Pooled, Score
from pflego.weights import Weights

log = logging.getLogger("flwr.pflego")


@dataclass
class SecureEngine(FlowerEngine):
    """Lets clients work at their own sites, and adds up what they send under masks.

    Parameters
    ----------
    folder
        Where a sum is written down until its round is over.
    privacy
        By which clients add noise to what they send, and send no figures; None: neither.
    """

    folder: Path = field(kw_only=True)
    privacy: ClientPrivacy | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sums = SecureSums(
            self.members.run, self.deployment.secure, self._ask, self.folder, self.privacy
        )

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        """Let every client of the cohort do its work, and give the sum of what came of it."""
        if not turns:
            return Work([])
        now = turns[0].now
        self._last = now.number
        like = self._rehearsed[now.exchange]
        known = self._figures(like)
        by_client = {self.members.clients[turn.position].id: turn for turn in turns}
        summed = self._sums.sum(
            Wanted(
                "train",
                now.number,
                now.exchange,
                [Standing(c, t.now.alpha, t.now.scale, t.weight) for c, t in by_client.items()],
                values=sum(tensor.numel() for tensor in like.contribution.values()),
                figures=2 * len(known),
                question=question_of(shared, now, self._common, list(known)),
                tensors=shared,
                facts=lambda client: {
                    "round": asdict(by_client[client].now),
                    "federation": asdict(self._common),
                    "figures": list(known),
                },
            )
        )
        if summed is None:
            self._last_reason = "too few clients stayed for a secure sum"
            return self._go_on(Work([]))
        log.info("round %d: the sum of %d of %d clients", now.number, len(summed.clients), len(turns))
        positions = {client: by_client[client].position for client in summed.clients}
        first, *_ = positions
        together = metrics_of(
            summed.figures, known
        )  # of all: they stand with the first, passes with everybody
        passes = {name: together[name] for name in PASSES if name in together}
        outcomes = [
            Outcome(
                position,
                client,
                self.members.clients[position].samples,
                state={},  # stays where it is
                metrics=together if client == first else passes,
                contribution=None,
                bytes_up=summed.bytes_up.get(client, 0),
                finite=True,
            )
            for client, position in positions.items()
        ]
        return self._go_on(
            Work(
                outcomes,
                [contribution_of(summed.values, like.contribution)],
                seconds=summed.seconds,
                noised=self.privacy is not None,
            )
        )

    def _figures(self, like: Rehearsed) -> dict[str, How]:
        """Name what is summed up beside contributions, and how it is combined; under privacy nothing is."""
        if self.privacy is not None:
            return {}
        measured = {name: metric.how for name, metric in like.metrics.items()}
        return {**summable({**ALWAYS, **measured}), CLIPPED: "sum"}

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        """Let every client try its model on its own test data; give the sum of their results, and nobody's own."""
        clients = [member.id for member in self.members.clients]
        moment = Moment(self._last, adapt)
        summed: Summed | None = self._sums.sum(
            Wanted(
                "evaluate",
                moment.round,
                int(adapt),
                [Standing(client, 1 / len(clients), 1.0, 1 / len(clients)) for client in clients],
                values=0,
                figures=SCORE,
                question=question_of(shared, moment, self._common),
                tensors=shared,
                facts=lambda _: {"moment": asdict(moment), "federation": asdict(self._common)},
            )
        )
        return Pooled(Score(0, None, 0.0) if summed is None else score_of(summed.figures), len(clients))
