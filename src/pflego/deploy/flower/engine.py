"""Client work at the clients' own sites, asked for and waited for through Flower.

Nothing a client sends is believed: a reply that is not what was agreed on is dropped, counted as rejected and logged
with the number of its node, and the round goes on. A client that does not answer in time is missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median_high

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pflego.algorithms.base import Algorithm
from pflego.codec import MessageError, some
from pflego.deploy.flower.app_config import Deployment
from pflego.deploy.flower.desk import rehearse, stand_in
from pflego.deploy.flower.facts import Common
from pflego.deploy.flower.membership import Membership
from pflego.deploy.flower.messages import (
    WELCOME,
    Arrival,
    Expected,
    Moment,
    Reply,
    pack_arrival,
    pack_moment,
    pack_turn,
    plain,
    read_reply,
    read_score,
    reason,
)
from pflego.deploy.flower.roll import Present, Roll
from pflego.engines.base import Gathered, Outcome, Turn, Work
from pflego.engines.rehearsal import Rehearsed
from pflego.errors import UserError
from pflego.exchange.compression import Compression, unpack
from pflego.exchange.metrics import Metrics
from pflego.exchange.round import Round
from pflego.federation.members import Members
from pflego.federation.remote import RemoteFederation
from pflego.federation.roster import ClientId
from pflego.learning.evaluation import Score
from pflego.learning.model import Model
from pflego.weights import Weights, norm

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
    membership
        Decides who are members, and when.
    model, algorithm, seed
        What everybody begins with, which tells what a message looks like.
    deployment
        Timeouts and limits.
    private
        Whether clients send no figures, and no reply is judged by the others'.
    poll
        Seconds between two looks at whose reply is there.
    compression
        How clients make what they send small.
    """

    grid: Grid
    roll: Roll
    membership: Membership
    model: Model
    algorithm: Algorithm
    seed: int
    deployment: Deployment
    private: bool = False
    poll: float = 1.0
    compression: Compression | None = None
    members: Members = field(init=False)
    federation: RemoteFederation = field(init=False)  # as of the last round that was settled
    _rehearsed: list[Rehearsed] = field(init=False)
    _met: object = field(init=False, default=None)  # what tells the members of a round from those of another
    _last: int = field(init=False, default=0)  # the newest round that clients were asked for
    _fruitless: int = field(init=False, default=0)  # rounds in a row without a reply of use
    _last_reason: str = field(init=False, default="nobody has answered in time")

    def __post_init__(self) -> None:
        self._meet(max(1, self.membership.members.settled))
        self._rehearsed = rehearse(
            stand_in(self.members, self.model, self.algorithm, self.seed, self.compression)
        )

    def assemble(self) -> None:
        """Wait for everybody at the start, as long as the deployment says."""
        end = time.monotonic() + self.deployment.wait
        wanted = self.membership.waited_for(max(1, self.members.settled))
        while len(here := wanted & self.roll.call().keys()) < len(wanted) and time.monotonic() < end:
            time.sleep(self.poll)
        log.info("%d of %d clients are here", len(here), len(wanted))

    def settle(
        self, number: int, shared: Weights, check: Callable[[RemoteFederation], None]
    ) -> RemoteFederation:
        """Decide who is a member in a round; newcomers make their states ready for the weights as they are."""

        def welcome(members: Members, newcomers: Sequence[ClientId]) -> Collection[ClientId]:
            population, common = members.population, Common.of(members, self.model.base)
            arrival = Arrival(number, None if population is None else population.steps)
            content = pack_arrival(arrival, common, shared)
            return self._ask(WELCOME, newcomers, lambda _: content, group=str(number)).keys()

        self.membership.settle(number, welcome, check)
        self._meet(number)
        return self.federation

    def _meet(self, number: int) -> None:
        """Take note of a round's members."""
        members = self.membership.members
        there = {member.id for member in members.there(number)}
        if self._met == (known := (members.clients, members.population, there)):
            return
        self._met, self.members, self._there = known, members, there
        self._common = Common.of(self.members, self.model.base)
        self._tests = {member.id: member.tests for member in self.members.clients}
        self.federation = self.membership.federation(number)

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        """Let every client of the cohort do its work."""
        if not turns:
            return Work([])
        now = turns[0].now
        self._last = now.number
        by_client = {self.members.clients[turn.position].id: turn for turn in turns}

        def content(client: ClientId) -> RecordDict:
            turn = by_client[client]
            return pack_turn(turn.now, self._common, {**shared, **turn.answer})

        began = time.monotonic()
        answers = self._ask(MessageType.TRAIN, list(by_client), content, group=str(now.number))
        work = self._go_on(self._judge(answers, by_client))
        seconds = time.monotonic() - began
        log.info("round %d: %d of %d replies after %.1f s", now.number, len(answers), len(turns), seconds)
        return work

    def pool(self, gathered: Gathered) -> Gathered:
        """Return what is given: all has arrived here."""
        return gathered

    def forms(self) -> list[Weights]:
        """Give what was sent in each exchange of a rehearsal."""
        return [exchange.contribution for exchange in self._rehearsed]

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        """Let every client try its model on its own test data; one that does not answer has no samples."""
        content = pack_moment(Moment(self._last, adapt), self._common, shared)
        clients = [member.id for member in self.members.clients]
        asked = [client for client in clients if client in self._there]
        answers = self._ask(MessageType.EVALUATE, asked, lambda _: content, group=str(self._last))
        scores = []
        for client in clients:
            score = _NOTHING
            if client in answers:
                present, reply = answers[client]
                try:
                    score = read_score(reply.content, self._expected(client))
                except MessageError as error:
                    node = present.connection.node
                    log.warning("node %d, client %r: result left out: %s", node, client, plain(error))
            scores.append(score)
        return scores

    def _ask(
        self,
        kind: str,
        clients: Sequence[ClientId],
        content: Callable[[ClientId], RecordDict],
        *,
        group: str,
    ) -> dict[ClientId, tuple[Present, Message]]:
        """Ask everybody and wait: until all who are there have answered, or time is up.

        Somebody who comes while others are still at work is asked too, and somebody who was away is asked again.
        """
        end = time.monotonic() + self.deployment.reply_timeout
        answers: dict[ClientId, tuple[Present, Message]] = {}
        asked: dict[ClientId, Present] = {}  # whoever was asked last for a client
        sent: dict[str, Present] = {}  # by the id of the message
        while True:
            here = {c: p for c, p in self.roll.call().items() if c in self._there or c in clients}
            new = [here[c] for c in clients if c in here and c not in answers and asked.get(c) != here[c]]
            if new:
                left = max(1.0, end - time.monotonic())
                messages = [
                    Message(content(p.facts.client), p.connection.node, kind, ttl=left, group_id=group)
                    for p in new
                ]
                for present, number in zip(new, self.grid.push_messages(messages), strict=True):
                    asked[present.facts.client] = present
                    if number:  # a node that has just gone gets no message
                        sent[number] = present
            for reply in self.grid.pull_messages(list(sent)) if sent else []:
                present = sent.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    node, why = present.connection.node, reason(reply)
                    self._last_reason = f"client {present.facts.client!r}: no answer: {why}"
                    log.warning("node %d, %s", node, self._last_reason)
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
                        f"none of the {len(self._there)} clients is connected: "
                        f"start the same again to go on after the last checkpoint"
                    )
                return answers
            time.sleep(self.poll)

    def _judge(
        self,
        answers: Mapping[ClientId, tuple[Present, Message]],
        turns: Mapping[ClientId, Turn],
    ) -> Work:
        """Check every reply; those that are not fit for use become outcomes that say so."""
        sound: dict[ClientId, Reply] = {}
        for client, (present, reply) in answers.items():
            now = turns[client].now
            like = self._rehearsed[now.exchange]
            try:
                sound[client] = read_reply(
                    reply.content,
                    like.sent,
                    like.metrics,
                    self._expected(client),
                    now.alpha,
                    partial(self._unpacked, like.contribution, now, client),
                    private=self.private,
                )
            except MessageError as error:
                self._dropped(present, error)
        for client, heard in sound.items():
            if heard.left_out:
                node, names = answers[client][0].connection.node, some(map(repr, heard.left_out))
                log.warning("node %d, client %r: metrics left out: %s", node, client, names)
        if not self.private:  # under privacy they are clipped, whatever the others' are
            self._drop_the_longest(sound, answers)
        outcomes = [
            self._outcome(client, turn.position, sound.get(client))
            for client, turn in turns.items()
            if client in answers
        ]
        return Work(outcomes, seconds=max((reply.seconds for reply in sound.values()), default=0.0))

    def _drop_the_longest(
        self, sound: dict[ClientId, Reply], answers: Mapping[ClientId, tuple[Present, Message]]
    ) -> None:
        """Leave out replies that are far longer than the others."""
        norms = {client: norm(reply.contribution) for client, reply in sound.items()}
        limit = self._limit(list(norms.values()))
        for client in [client for client, size in norms.items() if size > limit]:
            self._dropped(answers[client][0], f"its norm is {norms[client]:.3g}, above {limit:.3g}")
            del sound[client]
        if sound:
            log.info("norms of the replies: median %.3g, limit %.3g", median_high(norms.values()), limit)

    def _unpacked(self, like: Weights, now: Round, client: ClientId, sent: Weights) -> Weights:
        """Give the contribution that a client's tensors stand for."""
        if self.compression is None:
            return sent
        return unpack(self.compression, sent, like, now, client, exact=self.algorithm.exact)

    def _limit(self, norms: Sequence[float]) -> float:
        """Compute the largest norm a reply may have: relative to the others, and as set.

        Of two, the larger counts as usual: nobody can say which of them is wrong. One of zero says nothing of the
        others: an objective may leave out most clients in a round.
        """
        moving = [size for size in norms if size]
        relative = self.deployment.norm_factor * median_high(moving) if moving else 0.0
        return min(relative, self.deployment.max_norm) if self.deployment.max_norm else relative

    def _expected(self, client: ClientId) -> Expected:
        return Expected(self.members.task, self._tests[client], self.deployment.max_loss)

    def _dropped(self, present: Present, why: object) -> None:
        self._last_reason = f"client {present.facts.client!r}: reply dropped: {plain(why)}"
        log.warning("node %d, %s", present.connection.node, self._last_reason)

    def _go_on(self, work: Work) -> Work:
        """Stop a run in which nothing of use arrives, round after round."""
        self._fruitless = 0 if any(outcome.finite for outcome in work.outcomes) else self._fruitless + 1
        if self._fruitless >= self.deployment.patience:
            raise UserError(
                f"no reply of use in {self._fruitless} rounds in a row ({self._last_reason}): what is wrong must be "
                f"put right, then start the same again to go on after the last checkpoint"
            )
        return work

    def _outcome(self, client: ClientId, position: int, reply: Reply | None) -> Outcome:
        contribution: Weights = {} if reply is None else reply.contribution
        metrics: Metrics = {} if reply is None else reply.metrics
        return Outcome(
            position,
            client,
            self.members.clients[position].samples,  # as it said when it joined
            state={},  # stays where it is
            metrics=metrics,
            contribution=contribution,
            bytes_up=0 if reply is None else reply.bytes_up,
            finite=reply is not None,
        )
