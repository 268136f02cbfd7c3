"""A secure sum in one process, with real cryptography: clients and server, and whoever is lost on the way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from pflego.deploy.flower.secure.fixed_point import Floats, Layout, Words, added
from pflego.deploy.flower.secure.party import Party, Revealed, Shared, advertise, mask, receive, reveal, share
from pflego.deploy.flower.secure.roster import Entry, Roster, Session
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.flower.secure.tally import unmask

RULES = SecureSum(on=True, clip=1.0)
QUESTION = "0123"


def session(round_number: int = 1, attempt: str = "0" * 32, exchange: int = 0) -> Session:
    return Session("r1", "train", round_number, exchange, attempt)


@dataclass
class Sum:
    """All that happened in a sum of clients 0 to n - 1."""

    parties: dict[int, Party]
    roster: Roster
    layout: Layout
    shared: dict[int, Shared] = field(default_factory=dict)
    masked: dict[int, Words] = field(default_factory=dict)
    revealed: dict[int, Revealed] = field(default_factory=dict)
    rules: SecureSum = RULES

    @classmethod
    def of(
        cls, values: Floats, figures: Floats, *, rules: SecureSum = RULES, when: Session | None = None
    ) -> Sum:
        """Let all clients advertise their keys: one row of values and figures for each."""
        count = len(values)
        parties = {number: advertise(when or session(), f"c{number}") for number in range(count)}
        entries = tuple(Entry(p.client, 1 / count, 1.0, 1 / count, p.keys) for p in parties.values())
        layout = Layout(
            values.shape[1], figures.shape[1], count, float(np.abs(values).max(axis=1).sum() or 1.0)
        )
        return cls(parties, Roster(when or session(), entries), layout, rules=rules)

    @property
    def needed(self) -> int:
        return self.rules.needed(len(self.roster.entries))

    def tokens_for(self, number: int) -> dict[int, str]:
        return {other: one.tokens[number] for other, one in self.shared.items() if other != number}

    @property
    def total(self) -> Words:
        """What a server has before the last stage."""
        return added(self.masked.values())

    def share_keys(self, *, lost: Collection[int] = ()) -> None:
        for number in self.parties.keys() - set(lost):
            self.parties[number], self.shared[number] = share(self.parties[number], self.roster, self.rules)

    def mask_all(self, values: Floats, figures: Floats, *, lost: Collection[int] = ()) -> None:
        for number in self.shared.keys() - set(lost):
            words = self.layout.encode(values[number], figures[number])
            self.parties[number] = receive(self.parties[number], self.tokens_for(number), self.rules)
            self.masked[number] = mask(self.parties[number], words, self.layout, QUESTION)

    @property
    def active(self) -> list[int]:
        return sorted(self.masked)

    @property
    def gone(self) -> list[int]:
        return sorted(self.shared.keys() - self.masked.keys())

    def reveal_all(self, *, lost: Collection[int] = ()) -> None:
        for number in self.masked.keys() - set(lost):
            self.revealed[number] = reveal(self.parties[number], self.active, self.gone, self.rules)

    def result(self) -> tuple[Floats, Floats]:
        words = unmask(
            self.roster,
            self.total,
            self.layout,
            QUESTION,
            active=self.active,
            lost=self.gone,
            revealed=self.revealed,
            commitments={number: one.commitment for number, one in self.shared.items()},
            needed=self.needed,
        )
        return self.layout.decode(words)
