"""Client work at the clients' own sites, asked for and waited for through Flower.

Nothing a client sends is believed: a reply that is not what was agreed on is dropped, counted as rejected and logged
with the number of its node, and the round goes on. A client that does not answer in time is missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median_low

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pflego.algorithms.base import Algorithm, Reply, Round
from pflego.engines.base import Outcome
from pflego.engines.flower.client import Desk
from pflego.engines.flower.members import Members
from pflego.engines.flower.messages import (
    Figures,
    Moment,
    pack,
    pack_round,
    reason,
    unpack,
    unpack_score,
)
from pflego.engines.flower.records import MessageError
from pflego.engines.flower.roll import Present, Roll
from pflego.engines.flower.settings import Deployment
from pflego.errors import UserError
from pflego.evaluation import Score
from pflego.federation import Client, ClientId
from pflego.model import Model
from pflego.problem import Streaming
from pflego.weights import Weights

log = logging.getLogger("flwr.pflego")

_NOTHING = Score(0, None, 0.0)


@dataclass
class FlowerEngine:
    """Lets clients work at their own sites.

    Parameters
    ----------
    grid
        Flower's.
    roll
        Who is there.
    members
        Who they are.
    model, algorithm, seed
        What everybody begins with, which tells what a message looks like.
    deployment
        Deadlines and limits.
    poll
        Seconds between two looks at whose reply is there.
    """

    grid: Grid
    roll: Roll
    members: Members
    model: Model
    algorithm: Algorithm
    seed: int
    deployment: Deployment
    poll: float = 1.0
    _expected: Weights = field(init=False)
    _last: int = field(init=False, default=0)  # the newest round that clients were asked for

    def __post_init__(self) -> None:
        self.roll.only(self.members.admit)
        self._expected = rehearse(self.members, self.model, self.algorithm, self.seed)

    def assemble(self) -> None:
        """Wait for everybody at the start, as long as the deployment says."""
        end = time.monotonic() + self.deployment.wait
        while len(here := self.roll.call()) < len(self.members.clients) and time.monotonic() < end:
            time.sleep(self.poll)
        log.info("%d of %d clients are here", len(here), len(self.members.clients))

    def run(self, round: Round, shared: Weights, cohort: Sequence[int]) -> list[Outcome]:
        """Let every client of the cohort do its work; outcomes in the order of the federation."""
        self._last = round.number
        positions = {self.members.clients[position].id: position for position in sorted(cohort)}
        content = RecordDict(
            {
                "shared": pack(shared),
                "round": pack_round(round),
                "federation": self.members.common.pack(),
            }
        )
        began = time.monotonic()
        answers = self._ask(MessageType.TRAIN, list(positions), content, group=str(round.number))
        outcomes = self._judge(answers, positions, shared)
        log.info(
            "round %d: %d of %d replies after %.1f s",
            round.number,
            len(answers),
            len(positions),
            time.monotonic() - began,
        )
        return outcomes

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        """Let every client try its model on its own test data; one that does not answer has no samples."""
        content = RecordDict(
            {
                "shared": pack(shared),
                "moment": Moment(self._last, adapt).pack(),
                "federation": self.members.common.pack(),
            }
        )
        clients = [member.id for member in self.members.clients]
        answers = self._ask(MessageType.EVALUATE, clients, content, group=str(self._last))
        scores = []
        for client in clients:
            score = _NOTHING
            if client in answers:
                present, reply = answers[client]
                try:
                    score = unpack_score(reply.content, self.members.task)
                except MessageError as error:
                    log.warning(
                        "node %d, client %r: figures left out: %s", present.connection.node, client, error
                    )
            scores.append(score)
        return scores

    def _ask(
        self, kind: str, clients: Sequence[ClientId], content: RecordDict, *, group: str
    ) -> dict[ClientId, tuple[Present, Message]]:
        """Send everybody the same and wait: until all who are there have answered, or the deadline.

        Somebody who comes while others are still at work is asked too, and somebody who was away is asked again.
        """
        end = time.monotonic() + self.deployment.deadline
        answers: dict[ClientId, tuple[Present, Message]] = {}
        asked: dict[ClientId, Present] = {}  # whoever was asked last for a client
        sent: dict[str, Present] = {}  # by the id of the message
        while True:
            here = self.roll.call()
            new = [here[c] for c in clients if c in here and c not in answers and asked.get(c) != here[c]]
            if new:
                left = max(1.0, end - time.monotonic())
                messages = [Message(content, p.connection.node, kind, ttl=left, group_id=group) for p in new]
                for present, id in zip(new, self.grid.push_messages(messages), strict=True):
                    asked[present.facts.client] = present
                    if id:  # a node that has just gone gets no message
                        sent[id] = present
            for reply in self.grid.pull_messages(list(sent)) if sent else []:
                present = sent.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    node, why = present.connection.node, reason(reply)
                    log.warning("node %d, client %r: no answer: %s", node, present.facts.client, why)
                else:
                    answers.setdefault(present.facts.client, (present, reply))
            at_work = any(
                here.get(p.facts.client) == p for p in sent.values() if p.facts.client not in answers
            )
            if len(answers) == len(clients) or (here and not at_work and not self.roll.waiting):
                return answers
            if time.monotonic() >= end:
                if not here:
                    raise UserError(
                        f"none of the {len(self.members.clients)} clients is connected: "
                        f"start the same again to go on after the last checkpoint"
                    )
                return answers
            time.sleep(self.poll)

    def _judge(
        self,
        answers: Mapping[ClientId, tuple[Present, Message]],
        positions: Mapping[ClientId, int],
        shared: Weights,
    ) -> list[Outcome]:
        """Check every reply; those that are not fit for use become outcomes that say so."""
        sound: dict[ClientId, tuple[Weights, Figures]] = {}
        for client, (present, reply) in answers.items():
            try:
                figures = Figures.unpack(reply.content, self.members.task)
                sound[client] = unpack(reply.content.get("message"), self._expected), figures
            except MessageError as error:
                self._dropped(present, error)
        norms = {client: norm(message) for client, (message, _) in sound.items()}
        limit = self._limit(list(norms.values()), shared)
        for client in [client for client, size in norms.items() if size > limit]:
            self._dropped(answers[client][0], f"its norm is {norms[client]:.3g}, above {limit:.3g}")
            del sound[client]
        if sound:
            log.info("norms of the replies: median %.3g, limit %.3g", median_low(norms.values()), limit)
        return [
            self._outcome(client, position, *sound.get(client, (None, None)))
            for client, position in positions.items()
            if client in answers
        ]

    def _limit(self, norms: Sequence[float], shared: Weights) -> float:
        """The largest norm a reply may have: relative to the others and to the shared weights, and as it was set."""
        usual = max([norm(shared), *([median_low(norms)] if norms else [])])
        relative = self.deployment.norm_factor * usual
        return min(relative, self.deployment.max_norm) if self.deployment.max_norm else relative

    def _dropped(self, present: Present, why: object) -> None:
        log.warning(
            "node %d, client %r: reply dropped: %s", present.connection.node, present.facts.client, why
        )

    def _outcome(
        self, client: ClientId, position: int, message: Weights | None, figures: Figures | None
    ) -> Outcome:
        samples = self.members.clients[position].samples  # as it said when it joined
        return Outcome(
            position,
            client,
            samples,
            Reply(client, samples, message or {}),
            state={},  # stays where it is
            loss=figures.loss if figures else 0.0,
            score=figures.score if figures else _NOTHING,
            seconds=figures.seconds if figures else 0.0,
            worker=position,
            forward_passes=figures.forward_passes if figures else 0,
            backward_passes=figures.backward_passes if figures else 0,
            fallbacks=figures.fallbacks if figures else 0,
            finite=figures is not None,
        )


def rehearse(members: Members, model: Model, algorithm: Algorithm, seed: int) -> Weights:
    """Give a message of the kind that clients send: what one sample of zeros leads to."""
    x = torch.zeros((1, *members.shape), dtype=getattr(torch, members.dtype))
    y = torch.tensor(members.classes[:1]) if members.classes else torch.zeros((1, members.outputs))
    desk = Desk(
        Client("rehearsal", x, y), members.common, model, algorithm, seed, streaming=Streaming(), device="cpu"
    )
    common = members.common
    round = Round(1, common.clients, expected=1, samples=common.samples, selected=1, seed=seed)
    [outcome] = desk.engine(desk.first()).run(round, desk.shared(), [0])
    return outcome.reply.message


def norm(weights: Weights) -> float:
    """The Euclidean norm of all tensors together."""
    return sqrt(sum(float(tensor.double().square().sum()) for tensor in weights.values()))
