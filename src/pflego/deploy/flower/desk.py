"""A client at work, in a federation of which it sees nothing but its own data and what all know."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from pflego.algorithms.base import Algorithm, newcomer
from pflego.codec import MessageError
from pflego.data.schema import Schema
from pflego.deploy.flower.facts import Common
from pflego.deploy.flower.site_config import Assignment
from pflego.engines import rehearsal
from pflego.engines.base import Outcome, Turn
from pflego.engines.local import LocalEngine
from pflego.engines.rehearsal import Rehearsed
from pflego.exchange.compression import Compression
from pflego.exchange.round import Round
from pflego.federation.roster import Client, Federation
from pflego.learning import device as devices
from pflego.learning.evaluation import Score
from pflego.learning.model import Model
from pflego.learning.problems import Problems
from pflego.learning.streaming import Streaming
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
        facts = assignment.facts(client, schema)
        common.check(facts)
        model = assignment.model(facts.shape)
        common.check_base(model.base)
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
            masses=None if self.client.weights is None else [self.client.mass],
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

    def welcome(self, shared: Weights, *, steps: int | None) -> tuple[Weights, Weights]:
        """Give the state of a client that comes when others have trained: its first one, and that one made ready."""
        weights = to(shared, self.problems.device)
        return newcomer(self.algorithm, weights, self.problems[0], seed=self.seed, steps=steps)

    def score(self, shared: Weights, state: Weights, *, adapt: bool) -> Score:
        """Try this client's own model on its test data."""
        [score] = self.engine(state).scores(to(shared, self.problems.device), adapt=adapt)
        return score


def rehearse(desk: Desk) -> list[Rehearsed]:
    """Play a round with one client; give what was received and sent in each of its exchanges."""
    states = {desk.client.id: desk.first()}
    engine = LocalEngine(desk.problems, desk.algorithm, states, compression=desk.compression)
    return rehearsal.rehearse(engine, desk.problems, desk.algorithm, states, seed=desk.seed)


def shapes(members: Members, model: Model, algorithm: Algorithm, seed: int) -> dict[str, torch.Size]:
    """Map name to shape for what members share."""
    shared = stand_in(members, model, algorithm, seed).shared()
    return {name: tensor.shape for name, tensor in shared.items()}


def stand_in(
    members: Members, model: Model, algorithm: Algorithm, seed: int, compression: Compression | None = None
) -> Desk:
    """Make ready a client like those of a federation, with one sample of zeros."""
    x = torch.zeros((1, *members.shape), dtype=getattr(torch, members.dtype))
    y = torch.tensor(members.classes[:1]) if members.classes else torch.zeros((1, members.outputs))
    client, common = Client("rehearsal", x, y), Common.of(members)
    return Desk(client, common, model, algorithm, seed, compression=compression)
