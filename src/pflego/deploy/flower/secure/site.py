"""A site's answers to the stages of a secure sum.

Each is answered once per attempt, and again only to the same question, with the same bytes. Of one round's exchange, or
one evaluation, a client helps to unmask one sum: two sums that differ in a client would show what is that client's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict

from pflego.codec import Decoded, MessageError, decode, digest
from pflego.deploy.flower.facts import Common
from pflego.deploy.flower.messages import Moment, pack, payload, read_round
from pflego.deploy.flower.secure import party as protocol
from pflego.deploy.flower.secure.content import (
    figures_of,
    figures_of_score,
    question_of,
    row_of,
    with_clipped,
)
from pflego.deploy.flower.secure.fixed_point import Floats
from pflego.deploy.flower.secure.identity import Identity
from pflego.deploy.flower.secure.noise import layout_of, share_deviation
from pflego.deploy.flower.secure.party import Party
from pflego.deploy.flower.secure.roster import Entry, Roster, Session, digest_of
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.flower.secure.stage_file import Answer, Stage, StageFile
from pflego.deploy.flower.site_config import Site
from pflego.deploy.flower.terms import Answers, Question
from pflego.deploy.flower.work import Seat
from pflego.exchange.privacy import ClientPrivacy
from pflego.weights import Weights

_MOST_FIGURES = 200

log = logging.getLogger("flwr.pflego")


def keys(content: RecordDict, context: Context) -> RecordDict:
    """Draw the keys of a sum, and give the public ones."""

    def answer(stage: _Stage, _: Party | None) -> tuple[Party, Answer]:
        sign = [stage.identity.sign] if stage.identity else []
        party = protocol.advertise(stage.session, stage.site.id, *sign)
        return party, Answer({}, asdict(party.keys))

    return _Stage("keys", content, context).answered(answer)


def shares(content: RecordDict, context: Context) -> RecordDict:
    """Check who is in the sum, and give everybody shares of this client's secrets."""

    def answer(stage: _Stage, party: Party | None) -> tuple[Party, Answer]:
        assert party is not None
        roster = Roster.read(stage.asked.facts.inner("roster"))
        if stage.identity:
            stage.identity.check(roster)
        kept, shared = protocol.share(party, roster, stage.rules)
        return kept, Answer({}, {"tokens": _by_name(shared.tokens), "commitment": shared.commitment})

    return _Stage("shares", content, context).answered(answer)


def masked(content: RecordDict, context: Context) -> RecordDict:
    """Do the work, and give what came of it under masks."""

    def answer(stage: _Stage, party: Party | None) -> tuple[Party, Answer]:
        assert party is not None
        assert party.roster is not None
        roster = party.roster
        tokens = {
            _number(name): str(token) for name, token in stage.asked.facts.inner("tokens").facts.items()
        }
        party = protocol.receive(party, tokens, stage.rules)
        own = roster.entries[roster.number(party.client)]
        deviation = share_deviation(roster, stage.rules, stage.privacy)
        if stage.session.kind == "train":
            row, figures, question = _trained(stage, own, deviation, context)
        else:
            row, figures, question = _scored(stage, context)
        layout = layout_of(roster, stage.rules, len(row), len(figures), deviation=deviation)
        words = protocol.mask(party, layout.encode(row, figures), layout, question)
        octets = torch.from_numpy(np.frombuffer(layout.pack(words), np.uint8).copy())
        return party, Answer({"masked": octets}, {})

    return _Stage("masked", content, context).answered(answer)


def agree(content: RecordDict, context: Context) -> RecordDict:
    """Sign whom the sum is to be of."""

    def answer(stage: _Stage, party: Party | None) -> tuple[Party, Answer]:
        assert party is not None
        assert stage.identity is not None
        facts = protocol.agree(party, *stage.lists, stage.rules)
        signature = stage.identity.sign(facts)
        return replace(party, agreed=digest_of(facts).hex()), Answer({}, {"signature": signature})

    return _Stage("agree", content, context).answered(answer)


def unmask(content: RecordDict, context: Context) -> RecordDict:
    """Give shares by which the server can take the masks off the sum; forget all secrets."""

    def answer(stage: _Stage, party: Party | None) -> tuple[None, Answer]:
        assert party is not None
        if stage.identity:
            _check_agreed(stage, stage.identity, party)
        revealed = protocol.reveal(party, *stage.lists, stage.rules)
        return None, Answer({}, {"seeds": _by_name(revealed.seeds), "keys": _by_name(revealed.keys)})

    return _Stage("unmask", content, context).answered(answer)


class _Stage:
    """A question of a sum, and who is asked."""

    def __init__(self, name: Stage, content: RecordDict, context: Context) -> None:
        self.name: Stage = name
        self.asked: Decoded = decode(payload(content))
        self.session = Session.read(self.asked.facts.inner("session"))
        self.site = Site.read(context.node_config)
        assignment = self.site.assignment(context.run_config)
        self.rules: SecureSum = assignment.secure
        self.privacy: ClientPrivacy | None = assignment.privacy
        if not self.rules.on:
            raise MessageError(
                "it is of a secure sum, and the settings that this site has accepted have none"
            )
        self.identity = Identity(self.site.terms) if self.rules.signed else None
        self.sent: Weights = {}  # what went into the sum, but for noise, for the site's own log
        self.kept = False  # whether there is a new state
        self._answers = Answers(self.site.state, self.site.id)
        self._file = StageFile(self.site.state, self.site.id, signed=self.rules.signed)

    @property
    def lists(self) -> tuple[Sequence[int], Sequence[int]]:
        """Who arrived, and who did not, as the server says."""
        facts = self.asked.facts
        return facts.numbers("active", least=0), facts.numbers("lost", least=0)

    def answered(self, answer: Callable[[_Stage, Party | None], tuple[Party | None, Answer]]) -> RecordDict:
        """Answer, if it is time for it and nothing else was answered before; what is sent is on disk by then."""
        self._check_unseen()
        question = self._question(self.name)
        self._answers.check(question, self.site.terms)
        begin = self._file.before(self.session, self.name, self.asked.digest)
        if isinstance(begin, Answer):
            self._answers.note(question, {}, kept=False)
            return pack(begin.tensors, begin.facts)
        party, given = answer(self, begin)
        self._file.keep(self.session, self.name, self.asked.digest, party, given)
        self._answers.note(question, self.sent, kept=self.kept)
        log.info("round %d, %s: %s", self.session.round, self.session.kind, self.name)
        return pack(given.tensors, given.facts)

    def _check_unseen(self) -> None:
        """Refuse another sum where one was unmasked."""
        if self.name != "unmask" and self._answers.given(self._question("unmask")):
            raise MessageError(
                f"a sum of round {self.session.round} was unmasked before ({self.session.kind}): this client is in no "
                "second one"
            )

    def _question(self, stage: Stage) -> Question:
        session = self.session
        return Question(session.run, f"{session.kind} {stage}", session.round, session.exchange)


def _check_agreed(stage: _Stage, identity: Identity, party: Party) -> None:
    """Refuse to unmask a sum that this client did not agree to, or that too few others were told of."""
    facts = protocol.agree(party, *stage.lists, stage.rules)
    if digest_of(facts).hex() != party.agreed:
        raise MessageError("it asks for another sum than this client has signed")
    assert party.roster is not None
    signatures = stage.asked.facts.inner("signatures").facts
    active, _ = stage.lists
    signed = [
        number
        for number in active
        if identity.signed_by(
            party.roster.entries[number].client, facts, str(signatures.get(str(number), ""))
        )
    ]
    if len(signed) < (needed := stage.rules.needed(len(party.roster.entries))):
        raise MessageError(f"{len(signed)} clients have signed whom the sum is of, and it needs {needed}")


def _trained(stage: _Stage, own: Entry, deviation: float, context: Context) -> tuple[Floats, Floats, str]:
    """Do a round's work; give the row of its contribution, figures, and a digest of what everybody is asked for.

    Under privacy there are no figures, and work that is not finite counts as zeros: who is in a sum tells nothing of
    the data.
    """
    asked = stage.asked
    now, common = read_round(asked.facts.inner("round")), Common.read(asked.facts.inner("federation"))
    names = [str(name) for name in asked.facts.one("figures", (list,))]
    told = (common.run, now.number, now.exchange, now.alpha, now.scale)
    session = stage.session
    if told != (session.run, session.round, session.exchange, own.alpha, own.scale):
        raise MessageError(
            "the round in it is not that of the sum, or not with the weights that all were told"
        )
    if len(names) > _MOST_FIGURES or len(set(names)) < len(names):
        raise MessageError("its figures are too many, or one is in it twice")
    if names and stage.privacy is not None:
        raise MessageError("it asks for figures beside the weights, and under privacy none leave")
    seat = Seat(common, context)
    asked.hold_to(seat.desk.received(now.exchange))
    all_facts = json.dumps([asdict(now), asdict(common), own.weight], sort_keys=True)
    outcome, _ = seat.work(now, asked.tensors, digest(asked.tensors, all_facts))
    sent, clip = outcome.contribution or {}, stage.rules.limit
    if not outcome.finite:
        if stage.privacy is None:
            raise MessageError("its work was not finite, and is not sent")
        log.warning("round %d: the work was not finite, and counts as zeros", now.number)
        sent = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    stage.sent, stage.kept = sent, outcome.finite
    row = row_of(sent, clip=clip, weight=own.weight, now=now, client=stage.site.id, deviation=deviation)
    figures = figures_of(with_clipped(outcome.metrics, sent, clip=clip), names)
    return row, figures, question_of(asked.tensors, now, common, names)


def _scored(stage: _Stage, context: Context) -> tuple[Floats, Floats, str]:
    """Try this client's model; give no row, its test result, and a digest of what everybody is asked for."""
    asked, session = stage.asked, stage.session
    moment, common = Moment.read(asked.facts.inner("moment")), Common.read(asked.facts.inner("federation"))
    if (common.run, moment.round, int(moment.adapt)) != (session.run, session.round, session.exchange):
        raise MessageError("the evaluation in it is not that of the sum")
    seat = Seat(common, context)
    shared = asked.hold_to(seat.desk.shared()).tensors
    score = seat.score(moment.round, shared, adapt=moment.adapt)
    return np.zeros(0), figures_of_score(score), question_of(shared, moment, common)


def _by_name(values: Any) -> dict[str, str]:
    return {str(number): value for number, value in values.items()}


def _number(name: str) -> int:
    if not name.isdecimal() or len(name) > 6:
        raise MessageError(f"it has shares of {name[:40]!r}, which is no client's number")
    return int(name)
