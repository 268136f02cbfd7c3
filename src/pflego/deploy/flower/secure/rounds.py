"""A secure sum at the server: its stages, one after the other, over Flower's messages.

Fewer clients than are needed, at any stage, and the sum comes to nothing: no mask is taken off. What is needed to go on
is written down before the last stage begins, since clients help to unmask one sum of a round and no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Protocol, TypeVar

import numpy as np
import torch
from flwr.app import Message, RecordDict

from pflego.codec import Decoded, MessageError, Reader, decode
from pflego.deploy.flower.messages import pack, payload, plain
from pflego.deploy.flower.roll import Present
from pflego.deploy.flower.secure.fixed_point import Floats, Layout, Words, added
from pflego.deploy.flower.secure.noise import layout_of, share_deviation
from pflego.deploy.flower.secure.party import Revealed, Shared
from pflego.deploy.flower.secure.roster import Entry, Keys, Roster, Session
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.flower.secure.tally import unmask
from pflego.exchange.privacy import ClientPrivacy
from pflego.federation.roster import ClientId
from pflego.files import make_folder, read_tensors, write_tensors
from pflego.weights import Weights

T = TypeVar("T")

_SIGNATURE = 300  # hexadecimal digits, at most

log = logging.getLogger("flwr.pflego")


class Ask(Protocol):
    """Asks clients and waits for their answers, as the engine does."""

    def __call__(
        self, kind: str, clients: Sequence[ClientId], content: Callable[[ClientId], RecordDict], *, group: str
    ) -> dict[ClientId, tuple[Present, Message]]:
        """Give who answered what."""
        ...


@dataclass(frozen=True)
class Standing:
    """How much a client counts in a sum."""

    client: ClientId
    alpha: float
    scale: float
    weight: float


@dataclass(frozen=True)
class Wanted:
    """What a sum is of."""

    kind: str  # train or evaluate
    round: int
    exchange: int
    clients: Sequence[Standing]
    values: int
    figures: int
    question: str  # a digest of what everybody is asked for
    tensors: Weights  # the same for everybody
    facts: Callable[[ClientId], Mapping[str, object]]  # beside them


@dataclass(frozen=True)
class Summed:
    """A sum."""

    clients: list[ClientId]  # whose contributions are in it
    values: Floats
    figures: Floats
    bytes_up: Mapping[ClientId, int] = field(default_factory=dict)
    seconds: float = 0.0  # until the last of them had done its work


@dataclass(frozen=True)
class _Masked:
    """Masked contributions, added up."""

    roster: Roster
    question: str
    active: list[int]
    lost: list[int]
    commitments: dict[int, str]
    total: Words
    signatures: dict[str, str] | None = (
        None  # of those who were told whom the sum is of; None: nobody was asked
    )


class SecureSums:
    """Sums of a run, one at a time.

    Parameters
    ----------
    run
        Names this training.
    rules
        Threshold, clip and the like.
    ask
        Reaches clients.
    folder
        Where a sum is written down until its round is over.
    privacy
        By which clients add noise to what they send; None: they add none.
    """

    def __init__(
        self, run: str, rules: SecureSum, ask: Ask, folder: Path, privacy: ClientPrivacy | None = None
    ) -> None:
        self._run, self._rules, self._ask, self._folder = run, rules, ask, folder
        self._privacy = privacy
        self._bytes: dict[ClientId, int] = {}

    def sum(self, wanted: Wanted) -> Summed | None:
        """Let clients work, and add up; None where too few of them stay."""
        self._bytes = {}
        self._forget(before=wanted.round)
        began = time.monotonic()
        masked = self._under_way(wanted)
        if isinstance(masked, Summed):
            log.info("round %d: the sum was unmasked before the server was stopped", wanted.round)
            return masked
        if masked is None:
            masked = self._collect(wanted)
        seconds = time.monotonic() - began
        if masked is None:
            return None
        layout = self._layout(wanted, masked.roster)
        if self._rules.signed and masked.signatures is None:
            masked = replace(masked, signatures=self._agreed(masked))
            self._write(wanted, masked)
        try:
            words = self._unmask(masked, layout)
        except MessageError as error:
            log.warning("round %d: %s", wanted.round, plain(error))
            return None
        clients = [masked.roster.entries[number].client for number in masked.active]
        values, figures = layout.decode(words)
        self._write(wanted, masked, values=values, figures=figures)
        return Summed(clients, values, figures, self._bytes, seconds)

    def _collect(self, wanted: Wanted) -> _Masked | None:
        """Play the stages up to the masked contributions."""
        session = Session(self._run, wanted.kind, wanted.round, wanted.exchange, token_hex(16))
        roster = self._roster(session, wanted)
        if not self._enough(roster, len(roster.entries), "have sent keys", wanted):
            return None
        shared = self._shares(roster)
        if not self._enough(roster, len(shared), "have shared their keys", wanted):
            return None
        parts = self._masked(roster, shared, wanted)
        if not self._enough(roster, len(parts), "have sent masked contributions", wanted):
            return None
        masked = _Masked(
            roster,
            wanted.question,
            active=sorted(parts),
            lost=sorted(shared.keys() - parts.keys()),
            commitments={number: one.commitment for number, one in shared.items()},
            total=added(parts.values()),
        )
        self._write(wanted, masked)
        return masked

    def _roster(self, session: Session, wanted: Wanted) -> Roster:
        heard = self._heard(
            "keys",
            [standing.client for standing in wanted.clients],
            lambda _: pack({}, {"session": asdict(session)}),
            session,
            lambda decoded: Keys.read(decoded.hold_to({}).facts),
        )
        entries = [
            Entry(s.client, float(s.alpha), float(s.scale), float(s.weight), heard[s.client])
            for s in wanted.clients
            if s.client in heard
        ]
        return Roster(session, tuple(entries))

    def _shares(self, roster: Roster) -> dict[int, Shared]:
        content = pack({}, {"session": asdict(roster.session), "roster": roster.facts})
        numbers = {entry.client: number for number, entry in enumerate(roster.entries)}
        heard = self._heard(
            "shares",
            list(numbers),
            lambda _: content,
            roster.session,
            lambda decoded: _read_shared(decoded.hold_to({}).facts),
        )
        return {
            numbers[client]: shared
            for client, shared in heard.items()
            if shared.tokens.keys() == set(numbers.values()) - {numbers[client]}
        }

    def _masked(self, roster: Roster, shared: Mapping[int, Shared], wanted: Wanted) -> dict[int, Words]:
        layout = self._layout(wanted, roster)
        numbers = {roster.entries[number].client: number for number in shared}
        like = {"masked": torch.zeros(layout.size, dtype=torch.uint8)}

        def content(client: ClientId) -> RecordDict:
            own = numbers[client]
            tokens = {str(n): one.tokens[own] for n, one in sorted(shared.items()) if n != own}
            facts = {"session": asdict(roster.session), "tokens": tokens, **wanted.facts(client)}
            return pack(wanted.tensors, facts)

        heard = self._heard(
            "masked",
            list(numbers),
            content,
            roster.session,
            lambda decoded: layout.unpack(decoded.hold_to(like).tensors["masked"].numpy()),
        )
        return {numbers[client]: words for client, words in heard.items()}

    def _agreed(self, masked: _Masked) -> dict[str, str]:
        """Let everybody sign whom the sum is of."""
        numbers = {masked.roster.entries[number].client: number for number in masked.active}
        heard = self._heard(
            "agree",
            list(numbers),
            lambda _: pack({}, _lists(masked)),
            masked.roster.session,
            lambda decoded: decoded.hold_to({}).facts.text("signature")[:_SIGNATURE],
        )
        return {str(numbers[client]): signature for client, signature in heard.items()}

    def _unmask(self, masked: _Masked, layout: Layout) -> Words:
        session = masked.roster.session
        content = pack({}, {**_lists(masked), "signatures": masked.signatures or {}})
        numbers = {masked.roster.entries[number].client: number for number in masked.active}
        heard = self._heard(
            "unmask",
            list(numbers),
            lambda _: content,
            session,
            lambda decoded: _read_revealed(decoded.hold_to({}).facts),
        )
        return unmask(
            masked.roster,
            masked.total,
            layout,
            masked.question,
            active=masked.active,
            lost=masked.lost,
            revealed={numbers[client]: one for client, one in heard.items()},
            commitments=masked.commitments,
            needed=self._rules.needed(len(masked.roster.entries)),
        )

    def _heard(
        self,
        stage: str,
        clients: Sequence[ClientId],
        content: Callable[[ClientId], RecordDict],
        session: Session,
        read: Callable[[Decoded], T],
    ) -> dict[ClientId, T]:
        """Ask for a stage; give what was answered, checked."""
        answers = self._ask(f"train.{stage}", clients, content, group=f"{session.kind} {session.round}")
        heard = {}
        for client, (present, reply) in answers.items():
            try:
                data = payload(reply.content)
                heard[client] = read(decode(data))
                self._bytes[client] = self._bytes.get(client, 0) + len(data)
            except MessageError as error:
                node = present.connection.node
                log.warning("node %d, client %r: %s dropped: %s", node, client, stage, plain(error))
        return heard

    def _enough(self, roster: Roster, count: int, what: str, wanted: Wanted) -> bool:
        needed = self._rules.needed(len(roster.entries))
        if count < needed:
            log.warning(
                "round %d: %d of %d clients %s, and a secure sum needs %d: nothing is unmasked",
                wanted.round, count, len(wanted.clients), what, needed,
            )  # fmt: skip
        return count >= needed

    def _layout(self, wanted: Wanted, roster: Roster) -> Layout:
        deviation = share_deviation(roster, self._rules, self._privacy)
        return layout_of(roster, self._rules, wanted.values, wanted.figures, deviation=deviation)

    def _path(self, wanted: Wanted) -> Path:
        return self._folder / f"{wanted.round}-{wanted.kind}-{wanted.exchange}.safetensors"

    def _write(
        self, wanted: Wanted, masked: _Masked, *, values: Floats | None = None, figures: Floats | None = None
    ) -> None:
        """Write down a sum: while it is masked what the last stage needs, then what came of it."""
        make_folder(self._folder, private=True)
        facts = {
            "cohort": [standing.client for standing in wanted.clients],
            "roster": masked.roster.facts,
            "question": masked.question,
            "active": masked.active,
            "lost": masked.lost,
            "commitments": {str(number): text for number, text in masked.commitments.items()},
            "signatures": masked.signatures,
        }
        tensors = (
            {"total": torch.from_numpy(masked.total.view(np.int64))}
            if values is None or figures is None
            else {"values": torch.from_numpy(values), "figures": torch.from_numpy(figures)}
        )
        write_tensors(self._path(wanted), tensors, facts, private=True)

    def _under_way(self, wanted: Wanted) -> _Masked | Summed | None:
        """Give what was written down of the same sum, before the server was stopped."""
        if not (path := self._path(wanted)).exists():
            return None
        tensors, facts = read_tensors(path)
        cohort = facts.one("cohort", (list,))
        roster = Roster.read(facts.inner("roster"))
        if facts.text("question") != wanted.question or cohort != [s.client for s in wanted.clients]:
            return None
        active = list(facts.numbers("active", least=0))
        if "values" in tensors:
            clients = [roster.entries[number].client for number in active]
            return Summed(clients, tensors["values"].numpy(), tensors["figures"].numpy())
        return _Masked(
            roster,
            wanted.question,
            active,
            list(facts.numbers("lost", least=0)),
            {int(number): str(text) for number, text in facts.inner("commitments").facts.items()},
            tensors["total"].numpy().view(np.uint64),
            None if (found := facts.facts["signatures"]) is None else dict(Reader(found).facts),  # type: ignore[arg-type]
        )

    def _forget(self, *, before: int) -> None:
        """Remove the sums of earlier rounds."""
        for path in self._folder.glob("*.safetensors"):
            if int(path.name.partition("-")[0]) < before:
                path.unlink(missing_ok=True)


def _lists(masked: _Masked) -> dict[str, object]:
    return {"session": asdict(masked.roster.session), "active": masked.active, "lost": masked.lost}


def _read_shared(read: Reader) -> Shared:
    return Shared(_texts(read.inner("tokens")), read.text("commitment"))


def _read_revealed(read: Reader) -> Revealed:
    return Revealed(_texts(read.inner("seeds")), _texts(read.inner("keys")))


def _texts(read: Reader) -> dict[int, str]:
    """Map number to text."""
    found = {
        int(name): text for name, text in read.facts.items() if name.isdecimal() and isinstance(text, str)
    }
    if len(found) < len(read.facts) or any(len(text) > 4096 for text in found.values()):
        raise MessageError("its shares are not texts by the numbers of clients")
    return found
