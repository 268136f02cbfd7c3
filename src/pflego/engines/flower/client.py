"""The ClientApp: a client's work at its own site. All that leaves is what facts.py and messages.py pack.

query      who are you?             client, samples, classes, outputs, shape, type, schema
train      the shared weights       the method's message, and figures
evaluate   the shared weights       figures
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pflego import device as devices
from pflego.algorithms.base import Algorithm, Round
from pflego.data.schema import Schema
from pflego.engines.base import Outcome
from pflego.engines.flower.facts import Common, Facts
from pflego.engines.flower.keep import StateFile
from pflego.engines.flower.messages import (
    Figures,
    Moment,
    pack,
    pack_score,
    question,
    unpack,
    unpack_round,
)
from pflego.engines.flower.settings import Plan, Site
from pflego.engines.local import LocalEngine
from pflego.federation import Client, Federation
from pflego.model import Model
from pflego.problem import Problems, Streaming
from pflego.weights import Weights, to

_CHECK_SAMPLES = 8  # how many samples the backbone is tried on before this client joins

log = logging.getLogger("flwr.pflego")
app = ClientApp()


@dataclass(frozen=True)
class Desk:
    """One client at work, in a federation of which it sees nothing but its own data and what all know."""

    client: Client
    common: Common
    model: Model
    algorithm: Algorithm
    seed: int
    streaming: Streaming
    device: str
    schema: Schema | None = None  # how its values became tensors

    @classmethod
    def of(cls, plan: Plan, site: Site, client: Client, common: Common, schema: Schema | None) -> Desk:
        """Make ready to work; a federation that the client cannot be part of is refused."""
        facts = Facts.of(client, schema)
        common.check(facts)
        model = plan.model(facts.shape)
        return cls(client, common, model, plan.algorithm, plan.seed, plan.streaming, site.device, schema)

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
        return Problems(federation, self.model.to(place), place, self.streaming, self.algorithm.label_space)

    def shared(self) -> Weights:
        """The server's first weights, which tell what all later ones look like."""
        return self.algorithm.init_shared(self.model, self.problems.outputs, self.seed)

    def first(self) -> Weights:
        """The state of a client that was never asked before."""
        return self.algorithm.init_state(self.problems[0], self.seed)

    def engine(self, state: Weights) -> LocalEngine:
        """What does the work: the same that runs a whole federation in one process."""
        return LocalEngine(self.problems, self.algorithm, {self.client.id: state})

    def work(self, round: Round, shared: Weights, state: Weights) -> tuple[RecordDict, Outcome]:
        """Do a round's work. Gives all that leaves, and what came of it here."""
        [outcome] = self.engine(state).run(round, to(shared, self.problems.device), [0])
        sent = outcome.reply.message if outcome.finite else {}
        return RecordDict({"message": pack(sent), "figures": Figures.of(outcome).pack()}), outcome

    def score(self, moment: Moment, shared: Weights, state: Weights) -> RecordDict:
        """Try this client's own model on its test data. Gives all that leaves."""
        [score] = self.engine(state).scores(to(shared, self.problems.device), adapt=moment.adapt)
        return RecordDict({"figures": MetricRecord(pack_score(score))})


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say who is here, once the model has been tried on the data."""
    plan, site = Plan.read(context.run_config), Site.read(context.node_config)
    client, schema = site.data_and_schema()
    facts = Facts.of(client, schema)
    plan.model(facts.shape).check(client.x_train[:_CHECK_SAMPLES])
    return Message(RecordDict({"facts": facts.pack()}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Do a round's work, keep the new state on disk, then send the message."""
    round = unpack_round(message.content)
    desk, kept, shared = _sit_down(message, context)
    asked = question(shared, round, desk.common)
    before = kept.begin(round.number, asked)
    if before is None:
        before = desk.first()
    content, outcome = desk.work(round, shared, before)
    if outcome.finite:
        kept.keep(round.number, asked, before, outcome.state)
    sent = content.array_records["message"]
    log.info(
        "round %d: %d bytes leave: %s", round.number, sent.count_bytes(), ", ".join(sent) or "no weights"
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Try this client's own model on its test data, as of a round; the shared part of it is written down."""
    moment = Moment.unpack(message.content)
    desk, kept, shared = _sit_down(message, context)
    state = kept.as_of(moment.round)
    kept.note(moment.round, shared, desk.common)
    return Message(desk.score(moment, shared, desk.first() if state is None else state), reply_to=message)


def _sit_down(message: Message, context: Context) -> tuple[Desk, StateFile, Weights]:
    """Check what was sent, and make ready to work on it."""
    plan, site = Plan.read(context.run_config), Site.read(context.node_config)
    common = Common.unpack(message.content)
    client, schema = site.data_and_schema()
    desk = Desk.of(plan, site, client, common, schema)
    shared = unpack(message.content.get("shared"), desk.shared())
    return desk, StateFile(site.state, common.run, client.id), shared
