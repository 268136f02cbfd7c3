"""The ClientApp: a client's work at its own site. All that leaves is what messages.py packs.

query      who are you?             client, samples, classes, outputs, shape, type, schema
train      the shared weights       the method's contribution, and metrics
evaluate   the shared weights       a test result
"""

from __future__ import annotations

import logging
from dataclasses import asdict

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pflego.codec import decode
from pflego.deploy.flower.desk import Desk
from pflego.deploy.flower.facts import Common, Facts
from pflego.deploy.flower.keep import StateFile
from pflego.deploy.flower.messages import (
    Moment,
    pack,
    pack_outcome,
    pack_score,
    payload,
    read_round,
)
from pflego.deploy.flower.site_config import Site
from pflego.deploy.flower.terms import Answers, Question
from pflego.errors import FolderError

_CHECK_SAMPLES = 8  # how many samples the backbone is tried on before this client joins

log = logging.getLogger("flwr.pflego")
app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say who is here, once the model has been tried on the data."""
    site = Site.read(context.node_config)
    assignment = site.assignment(context.run_config)
    client, schema = site.data_and_schema()
    facts = Facts.of(client, schema)
    assignment.model(facts.shape).check(client.x_train[:_CHECK_SAMPLES])
    Answers(site.state, client.id).introduced(asdict(facts))
    return Message(pack({}, asdict(facts)), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Do a round's work, keep the new state on disk, then send the contribution."""
    asked = decode(payload(message.content))
    now, common = read_round(asked.facts.inner("round")), Common.read(asked.facts.inner("federation"))
    desk, site = _sit_down(common, context)
    kept, answers = StateFile(site.state, common.run, site.id), Answers(site.state, site.id)
    question = Question(common.run, "train", now.number, now.exchange)
    answers.check(question, site.terms)
    asked.hold_to(desk.received(now.exchange))
    before = kept.begin(now, asked.digest)
    if before is None:
        _check_first(kept, answers, common.run)
        before = desk.first()
    outcome, seconds = desk.work(now, asked.tensors, before)
    if outcome.finite:
        kept.keep(now, asked.digest, before, outcome.state)
    sent = outcome.sent if outcome.finite else {}
    answers.note(question, sent, kept=outcome.finite)
    log.info("round %d: %d bytes leave: %s", now.number, outcome.bytes_up, ", ".join(sent) or "no weights")
    return Message(pack_outcome(outcome, seconds), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Try this client's own model on its test data, as of a round; the shared part of it is written down."""
    asked = decode(payload(message.content))
    moment, common = Moment.read(asked.facts.inner("moment")), Common.read(asked.facts.inner("federation"))
    desk, site = _sit_down(common, context)
    kept, answers = StateFile(site.state, common.run, site.id), Answers(site.state, site.id)
    question = Question(common.run, "evaluate", moment.round, int(moment.adapt))
    answers.check(question, site.terms)
    shared = asked.hold_to(desk.shared()).tensors
    state = kept.as_of(moment.round)
    if state is None:
        _check_first(kept, answers, common.run)
        state = desk.first()
    kept.note(moment.round, shared, common)
    score = desk.score(shared, state, adapt=moment.adapt)
    answers.note(question, {}, kept=False)
    return Message(pack_score(score), reply_to=message)


def _sit_down(common: Common, context: Context) -> tuple[Desk, Site]:
    """Make ready to work in a federation."""
    site = Site.read(context.node_config)
    assignment = site.assignment(context.run_config)
    client, schema = site.data_and_schema()
    return Desk.of(assignment, client, common, schema, device=site.device), site


def _check_first(kept: StateFile, answers: Answers, run: str) -> None:
    """Refuse to begin anew where a state was kept before: a lost head would go unnoticed."""
    if answers.has_kept(run):
        raise FolderError(
            f"the state of this client is gone: {kept.path} is not there, and {answers.path.name} says that it was "
            f"written. Bring it back from a backup; or remove {answers.path.name} too, to begin with a new state"
        )
