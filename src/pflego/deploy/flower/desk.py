"""A client at work, in a federation of which it sees nothing but its own data and what all know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from pflego.algorithms.base import Algorithm
from pflego.codec import MessageError
from pflego.data.schema import Schema
from pflego.deploy.flower.facts import Common, Facts
from pflego.deploy.flower.site_config import Assignment
from pflego.engines.base import Gathered, Outcome, Turn, Work
from pflego.engines.local import LocalEngine
from pflego.engines.play import Exchange
from pflego.exchange.compression import Compression
from pflego.exchange.metrics import Metrics
from pflego.exchange.round import Round
from pflego.federation.roster import Client, Federation
from pflego.learning import device as devices
from pflego.learning.evaluation import Score
from pflego.learning.model import Model
from pflego.learning.problem import Problems, Streaming
from pflego.weights import Weights, to

if TYPE_CHECKING:
    from pflego.federation.members import Members


@dataclass(frozen=True)
class Desk:
    """One client, ready to work."""

    client: Client
    common: Common
    model: Model
    algorithm: Algorithm
    seed: int
    streaming: Streaming = Streaming()
    device: str = "cpu"
    schema: Schema | None = None  # how its values became tensors
    compression: Compression | None = None  # of what it sends

    @classmethod
    def of(
        cls, assignment: Assignment, client: Client, common: Common, schema: Schema | None, *, device: str
    ) -> Desk:
        """Make ready to work; a federation that the client cannot be part of is refused."""
        facts = Facts.of(client, schema)
        common.check(facts)
        model = assignment.model(facts.shape)
        assignment.algorithm.check_model(model)
        return cls(
            client,
            common,
            model,
            assignment.algorithm,
            assignment.seed,
            assignment.streaming,
            device,
            schema,
            assignment.compression,
        )

    @cached_property
    def problems(self) -> Problems:
        """Its own problem, with the outputs that the whole federation asks for."""
        federation = Federation.lazy(
            [self.client.id],
            lambda _: self.client,
            sizes=[len(self.client.x_train)],
            classes=self.common.classes or None,
            most_classes=self.common.most_classes or None,
            schema=self.schema,
        )
        place = devices.resolve(self.device, self.model.dtype)
        return Problems(federation, self.model.to(place), place, self.streaming, self.algorithm.labels)

    def shared(self) -> Weights:
        """Return the server's first weights."""
        return self.algorithm.init_shared(self.model, self.problems.outputs, self.seed)

    def received(self, exchange: int) -> Weights:
        """Return weights like those that the server sends in an exchange."""
        if exchange >= (most := self.algorithm.exchanges):
            raise MessageError(f"its exchange is {exchange}, and {self.algorithm.name} has {most} per round")
        plain = self.algorithm.exchanges == 1 and type(self.algorithm).answers is Algorithm.answers
        return self.shared() if plain else rehearse(self)[exchange].received

    def first(self) -> Weights:
        """Return the state of a client that was never asked before."""
        return self.algorithm.init_state(self.problems[0], self.seed)

    def engine(self, state: Weights) -> LocalEngine:
        """Make the engine that does the work: the same that runs a whole federation in one process."""
        return LocalEngine(
            self.problems, self.algorithm, {self.client.id: state}, compression=self.compression
        )

    def work(self, now: Round, received: Weights, state: Weights) -> tuple[Outcome, float]:
        """Do a round's work; give what came of it, and how long it took."""
        done = self.engine(state).run([Turn(0, now, 1.0)], to(received, self.problems.device))
        [outcome] = done.outcomes
        return outcome, done.seconds

    def score(self, shared: Weights, state: Weights, *, adapt: bool) -> Score:
        """Try this client's own model on its test data."""
        [score] = self.engine(state).scores(to(shared, self.problems.device), adapt=adapt)
        return score


@dataclass(frozen=True)
class Rehearsed:
    """What one exchange looks like."""

    received: Weights
    contribution: Weights
    sent: Weights  # what stands for it on the wire
    metrics: Metrics
    state: Weights


@dataclass
class _Recorder:
    """An engine that notes what is received and sent."""

    local: LocalEngine
    seen: list[Rehearsed] = field(default_factory=list)

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        work = self.local.run(turns, shared)
        [turn], [outcome] = turns, work.outcomes
        received = {**shared, **turn.answer}
        self.seen.append(
            Rehearsed(received, outcome.contribution or {}, outcome.sent, outcome.metrics, outcome.state)
        )
        return work

    def pool(self, gathered: Gathered) -> Gathered:
        return gathered

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        raise NotImplementedError


def rehearse(desk: Desk) -> list[Rehearsed]:
    """Play a round with one client; give what was received and sent in each of its exchanges."""
    states = {desk.client.id: desk.first()}
    recorder = _Recorder(LocalEngine(desk.problems, desk.algorithm, states, compression=desk.compression))
    exchange = Exchange.of(desk.algorithm, desk.problems.federation.sizes, seed=desk.seed)
    exchange.play(
        recorder,
        1,
        to(desk.shared(), desk.problems.device),
        {},
        [0],
        ids=desk.problems.federation.ids,
        keep=states.update,
    )
    return recorder.seen


def stand_in(
    members: Members, model: Model, algorithm: Algorithm, seed: int, compression: Compression | None = None
) -> Desk:
    """Make ready a client like those of a federation, with one sample of zeros."""
    x = torch.zeros((1, *members.shape), dtype=getattr(torch, members.dtype))
    y = torch.tensor(members.classes[:1]) if members.classes else torch.zeros((1, members.outputs))
    client, common = Client("rehearsal", x, y), Common.of(members)
    return Desk(client, common, model, algorithm, seed, compression=compression)
