"""Secure sums in one process, with real cryptography: what they give, what they hide, what clients refuse."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pflego.codec import MessageError, Reader
from pflego.deploy.flower.secure.fixed_point import Floats
from pflego.deploy.flower.secure.party import Party, Revealed, mask, receive, reveal, share
from pflego.deploy.flower.secure.roster import Entry, Keys, Roster
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.flower.secure.tally import unmask
from tests.support.secure_sums import QUESTION, RULES, Sum, session


def contributions(clients: int, seed: int = 0, values: int = 40) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(clients, values)), generator.normal(size=(clients, 2)) * 100


def played(clients: int, seed: int = 0, **changed: object) -> tuple[Sum, Floats, Floats]:
    """A sum up to the masked contributions of all."""
    values, figures = contributions(clients, seed)
    one = Sum.of(values, figures, **changed)  # type: ignore[arg-type]
    one.share_keys()
    one.mask_all(values, figures)
    return one, values, figures


@st.composite
def losses(draw: st.DrawFn) -> tuple[int, list[int]]:
    """A number of clients, and for each of them the stage before which it is lost; 4: it stays."""
    clients = draw(st.integers(3, 7))
    return clients, draw(st.lists(st.integers(1, 4), min_size=clients, max_size=clients))


@settings(max_examples=60, deadline=None)
@given(pattern=losses(), seed=st.integers(0, 100))
def test_whoever_is_lost_when_the_sum_is_that_of_those_who_sent_or_nothing(
    pattern: tuple[int, list[int]], seed: int
) -> None:
    clients, until = pattern
    lost = [{number for number, stage in enumerate(until) if stage == before} for before in (1, 2, 3)]
    values, figures = contributions(clients, seed)
    one = Sum.of(values, figures)
    one.share_keys(lost=lost[0])
    if len(one.shared) < one.needed:
        if one.shared:
            with pytest.raises(MessageError, match="are left in the sum"):
                one.mask_all(values, figures)
        return
    one.mask_all(values, figures, lost=lost[1])
    if len(one.masked) < one.needed:
        if one.masked:
            with pytest.raises(MessageError, match="asks for the sum of"):
                one.reveal_all()
        return
    one.reveal_all(lost=lost[2])
    if len(one.revealed) < one.needed:
        with pytest.raises(MessageError, match="stays masked"):
            one.result()
        return
    total, counted = one.result()
    expected = values[one.active].sum(axis=0)
    np.testing.assert_allclose(total, expected, atol=1e-7 * one.layout.bound)
    np.testing.assert_allclose(counted, figures[one.active].sum(axis=0), atol=1e-6)


def test_masks_are_others_in_every_round_exchange_and_attempt() -> None:
    """The same clients, keys and contribution: what is sent has nothing in common but its size."""
    whens = [session(), session(2), session(exchange=1), session(attempt="1" * 32)]
    first, values, figures = played(3)
    sent = []
    for when in whens:
        parties = {n: replace(p, session=when, roster=None, shares={}) for n, p in first.parties.items()}
        one = Sum(parties, replace(first.roster, session=when), first.layout)
        one.share_keys()
        for number, party in one.parties.items():  # the same seeds too
            one.parties[number] = replace(party, seed=first.parties[number].seed)
        one.mask_all(values, figures)
        sent.append(one.masked[0])
    for position, words in enumerate(sent):
        for other in sent[:position]:
            assert (words != other).all()


def test_a_masked_contribution_looks_like_any_other() -> None:
    """Bytes of zeros, masked, are as evenly spread as random ones: a chi-squared test with 255 degrees of freedom."""
    values, figures = np.zeros((3, 20_000)), np.zeros((3, 2))
    one = Sum.of(values, figures)
    one.share_keys()
    one.mask_all(values, figures)
    for words in one.masked.values():
        octets = np.frombuffer(one.layout.pack(words), np.uint8)
        counts = np.bincount(octets, minlength=256)
        chi_squared = float(((counts - len(octets) / 256) ** 2 / (len(octets) / 256)).sum())
        assert 160 < chi_squared < 370  # 255 +- 5 standard deviations of 22.6


def test_without_the_last_stage_and_with_fewer_than_needed_the_server_has_noise() -> None:
    one, values, _ = played(5)
    close = 1e-2 * one.layout.bound
    before, _ = one.layout.decode(one.total)
    assert np.mean(np.abs(before - values.sum(axis=0)) > close) > 0.9
    for number, words in one.masked.items():
        alone, _ = one.layout.decode(words)
        assert np.mean(np.abs(alone - values[number]) > close) > 0.9
    one.reveal_all(lost=[0, 1])
    with pytest.raises(MessageError, match="stays masked"):
        one.result()


def test_what_was_revealed_gives_the_sum_and_no_part_of_it() -> None:
    """A curious server has every seed of those who arrived: without their mask keys a part of the sum stays noise."""
    one, values, _ = played(5)
    one.reveal_all()
    one.masked = {number: one.masked[number] for number in range(4)}  # as if the last had not been there
    commitments = {number: shared.commitment for number, shared in one.shared.items()}
    words = unmask(
        one.roster, one.total, one.layout, QUESTION, active=range(4), lost=[], revealed=one.revealed,
        commitments=commitments, needed=one.needed,
    )  # fmt: skip
    part, _ = one.layout.decode(words)
    assert np.mean(np.abs(part - values[:4].sum(axis=0)) > 1e-2 * one.layout.bound) > 0.9


def test_clients_that_were_told_different_things_give_noise() -> None:
    values, figures = contributions(4)
    for changed in ("question", "weights"):
        one = Sum.of(values, figures)
        theirs = replace(
            one.roster, entries=tuple(replace(e, weight=e.weight / 2) for e in one.roster.entries)
        )
        for number, party in one.parties.items():
            told = theirs if changed == "weights" and number == 0 else one.roster
            one.parties[number], one.shared[number] = share(party, told, RULES)
        if changed == "weights":  # no share is for the sum that the others are in
            with pytest.raises(MessageError, match="is not for this client and this sum"):
                one.mask_all(values, figures)
            continue
        for number, party in one.parties.items():
            words = one.layout.encode(values[number], figures[number])
            asked = "other weights" if number == 0 else QUESTION
            one.parties[number] = receive(party, one.tokens_for(number), RULES)
            one.masked[number] = mask(one.parties[number], words, one.layout, asked)
        one.reveal_all()
        total, _ = one.result()
        assert np.mean(np.abs(total - values.sum(axis=0)) > 1e-2 * one.layout.bound) > 0.9


@pytest.mark.parametrize(
    ("active", "lost", "why"),
    [
        ([0, 1, 2, 3, 4], [4], "both secrets"),
        ([0, 1, 2, 3], [], "not those who were there"),
        ([0, 1, 2, 3, 4, 5], [], "not those who were there"),
        ([0, 1, 2, 3, 3], [4], "not those who were there"),
        ([1, 2, 3, 4], [0], "did not arrive, and asks it all the same"),
        ([0, 1, 2], [3, 4], "the sum of 3 clients, and the sum needs 4"),
    ],
)
def test_a_client_reveals_no_two_secrets_and_no_small_sum(
    active: list[int], lost: list[int], why: str
) -> None:
    one, _, _ = played(5)
    with pytest.raises(MessageError, match=why):
        reveal(one.parties[0], active, lost, RULES)


def entries_with(roster: Roster, number: int, **changed: object) -> Roster:
    own = list(roster.entries)
    own[number] = replace(own[number], **changed)  # type: ignore[arg-type]
    return replace(roster, entries=tuple(own))


def test_a_client_refuses_a_sum_that_would_show_its_contribution() -> None:
    values, figures = contributions(5)
    one = Sum.of(values, figures)
    me, other = one.parties[0], one.roster.entries[1]
    wrong: list[tuple[Roster, SecureSum, str]] = [
        (replace(one.roster, session=session(2)), RULES, "of another sum"),
        (entries_with(one.roster, 0, keys=Keys(other.keys.mask, other.keys.encryption)), RULES, "other keys"),
        (entries_with(one.roster, 2, keys=other.keys), RULES, "twice"),
        (entries_with(one.roster, 2, client="c1"), RULES, "twice"),
        (replace(one.roster, entries=one.roster.entries[1:]), RULES, "is not in the sum"),
        (replace(one.roster, entries=one.roster.entries[:2]), RULES, "no fewer than 3"),
        (one.roster, replace(RULES, least=6), "no fewer than 6"),
        (entries_with(one.roster, 0, weight=4.0), RULES, "would show its contribution"),
        (
            replace(one.roster, entries=tuple(replace(e, weight=0.0) for e in one.roster.entries)),
            RULES,
            "would show its contribution",
        ),
    ]
    for roster, rules, why in wrong:
        with pytest.raises(MessageError, match=why):
            share(me, roster, rules)


def test_a_share_that_was_changed_or_sent_elsewhere_is_refused() -> None:
    values, figures = contributions(4)
    one = Sum.of(values, figures)
    one.share_keys()
    honest = one.tokens_for(0)

    def send(tokens: dict[int, str]) -> None:
        receive(one.parties[0], tokens, RULES)

    send(honest)
    token = honest[1]
    for changed in (token[:-10] + ("A" if token[-10] != "A" else "B") + token[-9:], token[:40], "", "ä"):
        with pytest.raises(MessageError, match="changed on the way"):
            send({**honest, 1: changed})
    with pytest.raises(MessageError, match="changed on the way"):  # of somebody else's, under another key
        send({**honest, 1: one.shared[1].tokens[2]})
    with pytest.raises(MessageError, match="not in the sum"):
        send({**honest, 7: token})
    with pytest.raises(MessageError, match="not in the sum"):
        send({**honest, 0: token})


def changed(share: str) -> str:
    """Change a share's first block: what it gives can still be unpadded, and is another secret."""
    return share[:10] + ("0" if share[10] != "0" else "1") + share[11:]


def test_a_wrong_share_in_the_last_stage_is_found_and_left_out() -> None:
    one, values, _ = played(6)
    one.reveal_all()
    good = dict(one.revealed)
    flipped = {number: changed(text) for number, text in good[0].seeds.items()}
    one.revealed[0] = Revealed(flipped, {})
    total, _ = one.result()
    np.testing.assert_allclose(total, values.sum(axis=0), atol=1e-7 * one.layout.bound)
    for nonsense in ({}, dict.fromkeys(range(6), "zz"), dict.fromkeys(range(6), "00"), good[1].seeds):
        one.revealed[0] = Revealed(nonsense, {})
        one.result()
    one.revealed = {number: good[number] for number in range(4)} | {0: Revealed(flipped, {})}
    with pytest.raises(MessageError, match="stays masked"):
        one.result()


def test_a_wrong_share_of_a_lost_clients_key_is_found() -> None:
    values, figures = contributions(5)
    one = Sum.of(values, figures)
    one.share_keys()
    one.mask_all(values, figures, lost=[2])
    one.reveal_all()
    one.revealed[0] = replace(one.revealed[0], keys={2: changed(one.revealed[0].keys[2])})
    with pytest.raises(MessageError, match="stays masked"):  # exactly as many as are needed
        one.result()


def test_what_a_client_remembers_outlives_its_process() -> None:
    one, _, _ = played(3)
    for party in one.parties.values():
        assert Party.read(Reader(json.loads(json.dumps(party.facts)))) == party


def test_a_roster_is_the_same_after_its_way() -> None:
    one, _, _ = played(3)
    assert Roster.read(Reader(json.loads(json.dumps(one.roster.facts)))).digest == one.roster.digest
    other = replace(one.roster, entries=(*one.roster.entries[:2], replace(one.roster.entries[2], scale=2.0)))
    assert other.digest != one.roster.digest
    assert isinstance(one.roster.entries[0], Entry)


@pytest.mark.parametrize(
    "key", ["", "x", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "x" * 5000]
)
def test_keys_that_are_none_are_refused(key: str) -> None:
    one, _, _ = played(3)
    with pytest.raises(MessageError, match="no public key"):
        Keys(key, one.roster.entries[0].keys.mask)
