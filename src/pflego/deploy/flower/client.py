"""The ClientApp: a client's work at its own site. All that leaves is what messages.py packs.

query      who are you?             client, samples, classes, outputs, shape, type, schema
train      the shared weights       the method's contribution, and metrics
  .welcome the shared weights       that a state is ready for them: this client joins late
evaluate   the shared weights       a test result

Under privacy neither metrics nor test results leave, and of the data not even how many samples and which classes.
Where contributions travel in secure sums alone, train and evaluate are refused, and train.keys, train.shares,
train.masked, train.agree and train.unmask stand in their place (secure/).
"""

from __future__ import annotations

import logging

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pflego.codec import MessageError, decode
from pflego.deploy.flower.facts import Common
from pflego.deploy.flower.messages import (
    WELCOME,
    Arrival,
    Moment,
    pack,
    pack_outcome,
    pack_score,
    payload,
    read_round,
)
from pflego.deploy.flower.site_config import Site
from pflego.deploy.flower.terms import Answers, Question
from pflego.deploy.flower.work import Seat

_CHECK_SAMPLES = 8  # how many samples the backbone is tried on before this client joins

log = logging.getLogger("flwr.pflego")
app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say who is here, once the model has been tried on the data."""
    site = Site.read(context.node_config)
    assignment = site.assignment(context.run_config)
    client, schema = site.data_and_schema()
    facts = assignment.facts(client, schema)
    assignment.model(facts.shape).check(client.x_train[:_CHECK_SAMPLES])
    Answers(site.state, client.id).introduced(facts.said)
    return Message(pack({}, facts.said), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Do a round's work, keep the new state on disk, then send the contribution."""
    asked = decode(payload(message.content))
    now, common = read_round(asked.facts.inner("round")), Common.read(asked.facts.inner("federation"))
    seat = _seat(common, context)
    question = Question(common.run, "train", now.number, now.exchange)
    seat.answers.check(question, seat.site.terms)
    asked.hold_to(seat.desk.received(now.exchange))
    outcome, seconds = seat.work(now, asked.tensors, asked.digest)
    sent = outcome.sent if outcome.finite else {}
    seat.answers.note(question, sent, kept=outcome.finite)
    log.info("round %d: %d bytes leave: %s", now.number, outcome.bytes_up, ", ".join(sent) or "no weights")
    return Message(pack_outcome(outcome, seconds, private=seat.private), reply_to=message)


@app.train(WELCOME.partition(".")[2])
def welcome(message: Message, context: Context) -> Message:
    """Make a state ready for the shared weights as they are, keep it on disk, then say so. Nothing else leaves."""
    asked = decode(payload(message.content))
    arrival, common = Arrival.read(asked.facts.inner("arrival")), Common.read(asked.facts.inner("federation"))
    seat = Seat(common, context)
    question = Question(common.run, "welcome", arrival.round)
    seat.answers.check(question, seat.site.terms)
    seat.welcome(arrival, asked.hold_to(seat.desk.shared()).tensors, asked.digest)
    seat.answers.note(question, {}, kept=True)
    log.info("this client joins in round %d", arrival.round)
    return Message(pack({}, {"round": arrival.round}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Try this client's own model on its test data, as of a round; the shared part of it is written down."""
    asked = decode(payload(message.content))
    moment, common = Moment.read(asked.facts.inner("moment")), Common.read(asked.facts.inner("federation"))
    seat = _seat(common, context)
    question = Question(common.run, "evaluate", moment.round, int(moment.adapt))
    seat.answers.check(question, seat.site.terms)
    shared = asked.hold_to(seat.desk.shared()).tensors
    score = seat.score(moment.round, shared, adapt=moment.adapt)
    seat.answers.note(question, {}, kept=False)
    return Message(pack_score(score), reply_to=message)


@app.train("keys")
def keys(message: Message, context: Context) -> Message:
    """Begin a secure sum."""
    from pflego.deploy.flower.secure import site  # loads cryptography, which others need not

    return Message(site.keys(message.content, context), reply_to=message)


@app.train("shares")
def shares(message: Message, context: Context) -> Message:
    """Give everybody in a secure sum a share of this client's secrets."""
    from pflego.deploy.flower.secure import site

    return Message(site.shares(message.content, context), reply_to=message)


@app.train("masked")
def masked(message: Message, context: Context) -> Message:
    """Do the work of a secure sum, and send what came of it under masks."""
    from pflego.deploy.flower.secure import site

    return Message(site.masked(message.content, context), reply_to=message)


@app.train("agree")
def agree(message: Message, context: Context) -> Message:
    """Sign whom a secure sum is of."""
    from pflego.deploy.flower.secure import site

    return Message(site.agree(message.content, context), reply_to=message)


@app.train("unmask")
def unmask(message: Message, context: Context) -> Message:
    """Help to take the masks off the sum."""
    from pflego.deploy.flower.secure import site

    return Message(site.unmask(message.content, context), reply_to=message)


def _seat(common: Common, context: Context) -> Seat:
    """Make ready to answer a question about this client alone."""
    seat = Seat(common, context)
    if seat.secure.on:
        raise MessageError("this site takes part in secure sums alone, and tells nobody what is its own")
    return seat
