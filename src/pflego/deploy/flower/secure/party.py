"""A client's half of a secure sum: what it answers to each stage, and what it refuses.

All functions are pure but for the randomness of keys, seeds and shares, which is the system's. A `Party` is what a
client remembers between stages; whoever calls these keeps it on disk, and sees to it that no stage is answered twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from secrets import token_bytes
from typing import Any

from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from pflego.codec import MessageError, Reader
from pflego.deploy.flower.secure.fixed_point import Layout, Words
from pflego.deploy.flower.secure.masks import pair_mask, self_mask
from pflego.deploy.flower.secure.roster import Keys, Roster, Session, digest_of, keys_of, public_key
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.federation.roster import ClientId

KEY_BYTES = 48  # of a private key on P-384, as a number
_SEED = 32  # bytes
_CURVE = ec.SECP384R1()


@dataclass(frozen=True)
class Share:
    """A share of each of another client's secrets; together with `threshold` - 1 others it gives the secret away."""

    seed: str  # of the seed of its own mask, in hexadecimal digits
    key: str  # of its mask key


@dataclass(frozen=True)
class Party:
    """What a client remembers between the stages of a sum."""

    session: Session
    client: ClientId
    keys: Keys  # public
    encryption_secret: str  # private numbers, in hexadecimal digits
    mask_secret: str
    roster: Roster | None = None
    seed: str = ""  # of its own mask
    shares: Mapping[str, Share] = field(default_factory=dict)  # by number: its own, then all that arrived
    agreed: str = ""  # a digest of whom the sum is of, where that was signed

    @property
    def facts(self) -> dict[str, Any]:
        """As facts of a file."""
        return {**asdict(self), "roster": None if self.roster is None else self.roster.facts}

    @classmethod
    def read(cls, read: Reader) -> Party:
        """Take it from facts of a file."""
        shares = read.inner("shares")
        return cls(
            Session.read(read.inner("session")),
            read.client("client"),
            keys=Keys.read(read.inner("keys")),
            encryption_secret=read.text("encryption_secret"),
            mask_secret=read.text("mask_secret"),
            roster=None if read.facts["roster"] is None else Roster.read(read.inner("roster")),
            seed=read.text("seed"),
            shares={name: _read_share(shares.inner(name)) for name in shares.facts},
            agreed=read.text("agreed"),
        )


@dataclass(frozen=True)
class Shared:
    """What a client gives in the second stage."""

    tokens: Mapping[int, str]  # by the number of the client that can read it
    commitment: str  # a digest of its seed, by which the server sees whether it was put together rightly


@dataclass(frozen=True)
class Revealed:
    """What a client gives in the last stage."""

    seeds: Mapping[int, str]  # shares by number: of those whose masked contribution arrived
    keys: Mapping[int, str]  # of those whose did not


def advertise(session: Session, client: ClientId, sign: Callable[[list[Any]], str] = lambda _: "") -> Party:
    """Draw the keys of a new sum; `Party.keys` is what leaves.

    sign: vouches for them.
    """
    encryption, encryption_public = generate_key_pairs()
    mask, mask_public = generate_key_pairs()
    first, second = (public_key_to_bytes(key).decode() for key in (encryption_public, mask_public))
    keys = Keys(first, second, sign(keys_of(session, client, first, second)))
    return Party(session, client, keys, _as_text(encryption), _as_text(mask))


def share(party: Party, roster: Roster, rules: SecureSum) -> tuple[Party, Shared]:
    """Check who is in the sum; give shares of both secrets to everybody, each encrypted to who is to have it."""
    if roster.session != party.session:
        raise MessageError("the keys in it are of another sum")
    roster.check(party.client, party.keys, rules)
    own, count = roster.number(party.client), len(roster.entries)
    seed, needed = token_bytes(_SEED), rules.needed(count)
    seed_shares = create_shares(seed, needed, count)
    key_shares = create_shares(bytes.fromhex(party.mask_secret), needed, count)
    shares = [Share(one.hex(), other.hex()) for one, other in zip(seed_shares, key_shares, strict=True)]
    secret = _private_key(party.encryption_secret)
    tokens = {
        number: encrypt(
            _envelope(secret, entry.keys), _addressed(roster, own, number, shares[number])
        ).decode()
        for number, entry in enumerate(roster.entries)
        if number != own
    }
    kept = replace(party, roster=roster, seed=seed.hex(), shares={str(own): shares[own]})
    return kept, Shared(tokens, commitment(seed))


def receive(party: Party, tokens: Mapping[int, str], rules: SecureSum) -> Party:
    """Take the shares of all others that are still there."""
    roster = _roster(party)
    own = roster.number(party.client)
    if own in tokens or not all(0 <= number < len(roster.entries) for number in tokens):
        raise MessageError("it has shares of clients that are not in the sum")
    if len(tokens) + 1 < (needed := rules.needed(len(roster.entries))):
        raise MessageError(f"{len(tokens) + 1} clients are left in the sum, and it needs {needed}")
    secret = _private_key(party.encryption_secret)
    shares = {
        str(number): _opened(roster, number, own, _envelope(secret, roster.entries[number].keys), token)
        for number, token in tokens.items()
    }
    return replace(party, shares={**party.shares, **shares})


def mask(party: Party, words: Words, layout: Layout, question: str) -> Words:
    """Mask a contribution with what was agreed with all whose shares are here.

    question: a digest of what all are asked for. Masks depend on it: where two clients were asked for different things,
    theirs do not cancel, and the sum tells nothing.
    """
    roster = _roster(party)
    own, present = roster.number(party.client), sorted(map(int, party.shares))
    context = masking_context(roster, present, question)
    total = words + self_mask(bytes.fromhex(party.seed), layout, context)
    mask_key = _private_key(party.mask_secret)
    for number in present:
        if number != own:
            common = pair_mask(mask_key, public_key(roster.entries[number].keys.mask), layout, context)
            total = total + common if own < number else total - common
    return total


def agree(party: Party, active: Sequence[int], lost: Sequence[int], rules: SecureSum) -> list[Any]:
    """Check whom the sum is to be of; give what a client signs so that nobody is told of another sum.

    A server that has both secrets of a client can take the masks off its contribution alone. So one list has all those
    who arrived and those who did not, and nobody is in both.
    """
    roster, known = _roster(party), sorted(map(int, party.shares))
    if set(active) & set(lost):
        raise MessageError("it asks for both secrets of a client")
    if sorted([*active, *lost]) != known:
        raise MessageError("those who arrived and those who did not are not those who were there")
    if roster.number(party.client) not in active:
        raise MessageError("it says that this client's contribution did not arrive, and asks it all the same")
    if len(active) < (needed := rules.needed(len(roster.entries))):
        raise MessageError(f"it asks for the sum of {len(active)} clients, and the sum needs {needed}")
    return ["pflego sum", roster.digest.hex(), sorted(active), sorted(lost)]


def reveal(party: Party, active: Sequence[int], lost: Sequence[int], rules: SecureSum) -> Revealed:
    """Give shares of the seeds of those who arrived, and of the mask keys of those who did not."""
    agree(party, active, lost, rules)
    return Revealed(
        seeds={number: party.shares[str(number)].seed for number in active},
        keys={number: party.shares[str(number)].key for number in lost},
    )


def masking_context(roster: Roster, present: Sequence[int], question: str) -> bytes:
    """Digest all that masks are bound to: run, round, attempt, everybody's keys and weights, who is there, what for."""
    return digest_of([roster.digest.hex(), sorted(present), question])


def commitment(seed: bytes) -> str:
    """Digest a seed: it is 256 random bits, and nobody finds it by its digest."""
    return sha256(b"pflego seed" + seed).hexdigest()


def private_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    """Make a private key of its number, as `Share.key` gives it when put together."""
    return ec.derive_private_key(int.from_bytes(secret), _CURVE)


def _private_key(text: str) -> ec.EllipticCurvePrivateKey:
    return private_key(bytes.fromhex(text))


def _as_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_numbers().private_value.to_bytes(KEY_BYTES).hex()


def _envelope(secret: ec.EllipticCurvePrivateKey, theirs: Keys) -> bytes:
    return generate_shared_key(secret, public_key(theirs.encryption))


def _addressed(roster: Roster, sender: int, receiver: int, content: Share) -> bytes:
    facts = {"sum": roster.digest.hex(), "from": sender, "to": receiver, **asdict(content)}
    return json.dumps(facts).encode()


def _opened(roster: Roster, sender: int, receiver: int, envelope: bytes, token: str) -> Share:
    """Open a share; refuse one that was changed on the way, or is of another sum, or of or for somebody else."""
    client = roster.entries[sender].client
    try:
        facts = Reader(json.loads(decrypt(envelope, token.encode())))
    except (InvalidToken, ValueError) as error:
        raise MessageError(f"the share of client {client!r} was changed on the way") from error
    addressed = facts.facts.get("sum"), facts.facts.get("from"), facts.facts.get("to")
    if addressed != (roster.digest.hex(), sender, receiver):
        raise MessageError(f"the share of client {client!r} is not for this client and this sum")
    return _read_share(facts)


def _read_share(read: Reader) -> Share:
    return Share(read.text("seed"), read.text("key"))


def _roster(party: Party) -> Roster:
    if party.roster is None:
        raise MessageError("it comes before the keys of the others were told")
    return party.roster
