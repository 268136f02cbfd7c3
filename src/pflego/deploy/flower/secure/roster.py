"""Who is in a secure sum, with which keys and weights: what everybody is told, and what everybody checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import bytes_to_public_key

from pflego.codec import MessageError, Reader
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.federation.roster import ClientId

_ATTEMPT = 32  # hexadecimal digits
_LARGEST_KEY = 1000  # characters
_SLACK = 1e-9  # by which shares of weights may be off, for rounding


@dataclass(frozen=True)
class Session:
    """One try at one sum."""

    run: str
    kind: str  # train or evaluate
    round: int
    exchange: int
    attempt: str  # drawn at random for every try: keys and masks are of this one alone

    @classmethod
    def read(cls, read: Reader) -> Session:
        """Take it from facts, checked."""
        run, attempt = read.text("run"), read.text("attempt")
        if not run.isalnum() or len(run) > 80:
            raise MessageError(f"its run is called {run[:40]!r}, not by letters and digits")
        if len(attempt) != _ATTEMPT or not set(attempt) <= set("0123456789abcdef"):
            raise MessageError(f"its attempt is {attempt[:40]!r}, no {_ATTEMPT} hexadecimal digits")
        return cls(
            run,
            kind=read.choice("kind", ("train", "evaluate")),
            round=read.whole("round", least=0),
            exchange=read.whole("exchange", least=0),
            attempt=attempt,
        )


@dataclass(frozen=True)
class Keys:
    """The public keys of a client in one sum, and by what it vouches for them."""

    encryption: str  # PEM
    mask: str
    signature: str = ""  # of its node's key; empty: nobody has asked for one

    def __post_init__(self) -> None:
        public_key(self.encryption)
        public_key(self.mask)
        if self.encryption == self.mask:
            raise MessageError("its two keys are the same")

    @classmethod
    def read(cls, read: Reader) -> Keys:
        """Take them from facts, checked."""
        return cls(read.text("encryption"), read.text("mask"), read.text("signature"))


@dataclass(frozen=True)
class Entry:
    """One client in the sum."""

    client: ClientId
    alpha: float  # a_i, which its work may depend on
    scale: float  # 1 / pi_i, likewise
    weight: float  # w_i, by which it multiplies its contribution
    keys: Keys


@dataclass(frozen=True)
class Roster:
    """Everybody in the sum, in the order of their numbers; `digest` binds all of it."""

    session: Session
    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, read: Reader) -> Roster:
        """Take it from facts, checked."""
        entries = [
            Entry(
                one.client("client"),
                alpha=one.finite("alpha", least=0, most=1),
                scale=one.finite("scale", least=0),
                weight=one.finite("weight", least=0),
                keys=Keys.read(one.inner("keys")),
            )
            for one in map(Reader, read.one("entries", (list,)))
        ]
        return cls(Session.read(read.inner("session")), tuple(entries))

    @property
    def facts(self) -> dict[str, Any]:
        """As facts of a message."""
        return {"session": asdict(self.session), "entries": [asdict(entry) for entry in self.entries]}

    @cached_property
    def digest(self) -> bytes:
        """Of all that is in it."""
        return digest_of(self.facts)

    @property
    def weight(self) -> float:
        """The sum of all weights."""
        return sum(entry.weight for entry in self.entries)

    def number(self, client: ClientId) -> int:
        """Give the number of a client."""
        for number, entry in enumerate(self.entries):
            if entry.client == client and type(entry.client) is type(client):
                return number
        raise MessageError(f"client {client!r} is not in the sum it is asked for")

    def check(self, client: ClientId, keys: Keys, rules: SecureSum) -> None:
        """Refuse a sum that a client should not be in: too small, its own part too large, keys that are not its own."""
        own = self.entries[self.number(client)]
        if own.keys != keys:
            raise MessageError("the server gives out other keys for this client than its own")
        all_keys = [key for entry in self.entries for key in (entry.keys.encryption, entry.keys.mask)]
        clients = {(type(entry.client), entry.client) for entry in self.entries}
        if len(set(all_keys)) < len(all_keys) or len(clients) < len(self.entries):
            raise MessageError("a client or a key is in the sum twice")
        count = len(self.entries)
        if rules.needed(count) > count:
            raise MessageError(
                f"the sum is of {count} clients, and this site agreed to no fewer than {rules.least}"
            )
        if not self.weight or own.weight > rules.share * self.weight + _SLACK:
            raise MessageError(
                f"this client counts for {own.weight:.3g} of {self.weight:.3g} in the sum, which would show its "
                f"contribution: this site agreed to a share of {rules.share:g}"
            )


def keys_of(session: Session, client: ClientId, encryption: str, mask: str) -> list[Any]:
    """Give what a client signs when it sends its keys."""
    return ["pflego keys", asdict(session), client, encryption, mask]


def public_key(pem: str) -> ec.EllipticCurvePublicKey:
    """Read a public key on the curve that Flower's keys are on."""
    try:
        key = bytes_to_public_key(pem.encode()) if len(pem) <= _LARGEST_KEY else None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise MessageError("a key in it is no public key on the curve P-384")
    return key


def digest_of(facts: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Digest facts, the same wherever they are."""
    return sha256(json.dumps(facts, sort_keys=True).encode()).digest()
