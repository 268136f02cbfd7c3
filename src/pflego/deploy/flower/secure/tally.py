"""The server's half of a secure sum: from masked contributions and shares to the sum, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from pflego.codec import MessageError
from pflego.deploy.flower.secure.fixed_point import Layout, Words
from pflego.deploy.flower.secure.masks import pair_mask, self_mask
from pflego.deploy.flower.secure.party import Revealed, commitment, masking_context, private_key
from pflego.deploy.flower.secure.roster import Roster, public_key


def unmask(
    roster: Roster,
    total: Words,
    layout: Layout,
    question: str,
    *,
    active: Sequence[int],
    lost: Sequence[int],
    revealed: Mapping[int, Revealed],
    commitments: Mapping[int, str],
    needed: int,
) -> Words:
    """Take all masks off the sum of masked contributions.

    Parameters
    ----------
    total
        The sum over those who are active.
    active, lost
        Whose masked contribution arrived, and who was there before and whose did not.
    revealed
        What was answered to the last stage, by number.
    commitments
        Digests of seeds, by number.
    needed
        How many shares give a secret away.
    """
    context = masking_context(roster, [*active, *lost], question)
    for number in active:
        shares = {
            holder: answer.seeds[number] for holder, answer in revealed.items() if number in answer.seeds
        }
        seed = _together(shares, needed, lambda found, n=number: commitment(found) == commitments[n])  # type: ignore[misc]
        total = total - self_mask(seed, layout, context)
    for number in lost:
        shares = {holder: answer.keys[number] for holder, answer in revealed.items() if number in answer.keys}
        public = roster.entries[number].keys.mask
        secret = _together(shares, needed, lambda found, key=public: _belongs(found, key))  # type: ignore[misc]
        key = private_key(secret)
        for other in active:
            common = pair_mask(key, public_key(roster.entries[other].keys.mask), layout, context)
            total = total - common if other < number else total + common
    return total


def _together(shares: Mapping[int, str], needed: int, is_right: Callable[[bytes], bool]) -> bytes:
    """Put a secret together; where a share is wrong, without it, as long as enough others are there."""
    usable = []
    for holder, text in sorted(shares.items()):
        try:
            share = bytes.fromhex(text)
        except ValueError:
            continue
        if share[:4] == (holder + 1).to_bytes(4, "little") and len(share) % 16 == 4:
            usable.append(share)
    for first in range(len(usable) if len(usable) >= needed else 0):
        try:
            secret = combine_shares([*usable[first:], *usable[:first]][:needed])
        except (ValueError, IndexError):
            continue
        if is_right(secret):
            return secret
    raise MessageError(
        f"{len(usable)} shares of a secret have arrived and {needed} are needed that go together: the sum stays masked"
    )


def _belongs(secret: bytes, pem: str) -> bool:
    """Tell whether a private key, as its number, is that of a public one."""
    try:
        return public_key_to_bytes(private_key(secret).public_key()).decode() == pem
    except ValueError:
        return False
