"""Who takes part in a round: processes in which all clients have the same chance, and how settings spell a process.

Such a process draws a cohort and knows its own expectation r, so that I/r is the inverse of a client's chance to take
part: Pr(i in cohort) = r / I.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pflego.declaration import load_object
from pflego.errors import SettingError, UserError, check_positive
from pflego.federation.client import ClientId
from pflego.federation.draws import Equal, Floats, Participation, Positions, Unequal
from pflego.federation.unequal import Daily, Estimated, Independent


@dataclass(frozen=True)
class Fixed:
    """Exactly r clients, drawn without replacement: the paper's case (b)."""

    r: int

    def __post_init__(self) -> None:
        check_positive("participation: the number of clients per round", self.r, whole=True)

    def check(self, clients: int) -> None:
        """Refuse a federation of fewer than r clients."""
        _check_size(self.r, clients)

    def expected(self, clients: int) -> float:
        """Return r itself."""
        return self.r

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        """Draw r of the clients."""
        return generator.choice(clients, self.r, replace=False)

    def __str__(self) -> str:
        return str(self.r)


@dataclass(frozen=True)
class Binomial:
    """Every client on its own with probability p, so r = I p: the paper's case (a). A cohort may be empty."""

    p: float

    def __post_init__(self) -> None:
        check_positive("participation: the probability to take part", self.p)
        if self.p > 1:
            raise SettingError(f"participation: the probability to take part is at most 1, not {self.p}")

    def check(self, clients: int) -> None:
        """Accept any federation."""

    def expected(self, clients: int) -> float:
        """I p."""
        return clients * self.p

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        """Toss a coin per client: their number is binomial, and any cohort of that size is as likely."""
        return generator.choice(clients, generator.binomial(clients, self.p), replace=False)

    def __str__(self) -> str:
        return f"binomial:{self.p}"


@dataclass(frozen=True)
class Between:
    """A number of clients drawn uniformly from low to high, both included, so r = (low + high) / 2."""

    low: int
    high: int

    def __post_init__(self) -> None:
        check_positive("participation: the smallest number of clients", self.low, whole=True)
        check_positive("participation: the largest number of clients", self.high, whole=True)
        if self.low > self.high:
            raise SettingError(
                f"participation: the smallest number {self.low} is above the largest {self.high}"
            )

    def check(self, clients: int) -> None:
        """Refuse a federation with fewer clients than may be drawn."""
        _check_size(self.high, clients)

    def expected(self, clients: int) -> float:
        """(low + high) / 2."""
        return (self.low + self.high) / 2

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        """Draw the number, then the clients."""
        return generator.choice(clients, generator.integers(self.low, self.high + 1), replace=False)

    def __str__(self) -> str:
        return f"between:{self.low}-{self.high}"


@dataclass(frozen=True)
class Everyone:
    """All clients in every round: no randomness, plain gradient descent."""

    def check(self, clients: int) -> None:
        """Accept any federation."""

    def expected(self, clients: int) -> float:
        """I."""
        return clients

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        """Take everybody."""
        return np.arange(clients)

    def __str__(self) -> str:
        return "everyone"


@dataclass(frozen=True)
class Guest:
    """A process that somebody else has written, and the name it was found by: module:Name."""

    name: str
    process: Equal

    def check(self, clients: int) -> None:
        """Do as the process does."""
        self.process.check(clients)

    def expected(self, clients: int) -> float:
        """Do as the process does."""
        return self.process.expected(clients)

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        """Do as the process does."""
        return self.process.draw(clients, generator)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class UnequalGuest:
    """The same for a process in which every client has a chance of its own."""

    name: str
    process: Unequal

    def check_ids(self, ids: Sequence[ClientId]) -> None:
        """Do as the process does."""
        self.process.check_ids(ids)

    def chances(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Floats:
        """Do as the process does."""
        return self.process.chances(ids, number=number, seed=seed)

    def draw_ids(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Positions:
        """Do as the process does."""
        return self.process.draw_ids(ids, number=number, seed=seed)

    def __str__(self) -> str:
        return self.name


def participation_of(given: object) -> Participation:
    """Make a participation process of what was given: one itself, a number of clients, or a text.

    >>> participation_of(20), participation_of("binomial:0.2"), participation_of("between:4-28")
    (Fixed(r=20), Binomial(p=0.2), Between(low=4, high=28))
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return Fixed(given)
    if isinstance(given, str):
        return _read(given)
    if isinstance(given, Mapping):
        return Independent({str(client): p for client, p in given.items()})
    if isinstance(given, Equal | Unequal) and not isinstance(given, type):
        return given
    raise SettingError(
        f"participation must be a number of clients per round, Fixed, Binomial, Between, Everyone, Independent, Daily, "
        f"Estimated or a process of your own with check, expected and draw, not {given!r}"
    )


def _read(text: str) -> Participation:
    kind, _, value = text.strip().partition(":")
    try:
        match kind.lower():
            case "everyone" if not value:
                return Everyone()
            case "binomial":
                return Binomial(float(value))
            case "between":
                low, high = value.split("-")
                return Between(int(low), int(high))
            case "independent":
                return Independent.read(value)
            case "daily":
                chances, _, rounds = value.partition("/")
                least, most = chances.split("-")
                return Daily(float(least), float(most), int(rounds or 24))
            case "estimated":
                cutoff, _, process = value.partition(":")
                return Estimated(_read(process), int(cutoff))
            case _ if not value:
                return Fixed(int(kind))
            case _:
                return _guest(text.strip())
    except ValueError as error:
        if isinstance(error, UserError):
            raise
    raise SettingError(
        f"cannot read participation {text!r}: give a number of clients (20), everyone, binomial:0.2, between:4-28, "
        f"independent:FILE, independent:table.csv:CLIENT:CHANCE, daily:0.05-0.5, estimated:50:binomial:0.2, "
        f"or module:Name of a process of your own"
    )


def _guest(text: str) -> Participation:
    found = load_object(text, "participation")
    try:
        process = found() if isinstance(found, type) else found
    except TypeError as error:
        raise SettingError(f"participation {text!r} cannot be made without arguments: {error}") from error
    if isinstance(process, Unequal):
        return UnequalGuest(text, process)
    if not isinstance(process, Equal):
        raise SettingError(f"participation {text!r} is no process: it needs check, expected and draw")
    return Guest(text, process)


def _check_size(wanted: int, clients: int) -> None:
    if wanted > clients:
        raise SettingError(
            f"participation asks for {wanted} clients per round, but the federation has {clients}"
        )
