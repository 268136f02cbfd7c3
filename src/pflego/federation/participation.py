"""Who takes part in a round.

A participation process draws a cohort and knows its own expectation r, so that I/r is always the inverse of
a client's chance to take part: Pr(i in cohort) = r / I.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pflego.declaration import load_object
from pflego.errors import SettingError, UserError, check_positive
from pflego.randomness import numpy_generator

Positions = npt.NDArray[np.int64]


@runtime_checkable
class Participation(Protocol):
    """A participation process."""

    def check(self, clients: int) -> None:
        """Refuse a federation that is too small for it."""
        ...

    def expected(self, clients: int) -> float:
        """Give r, the expected number of participants."""
        ...

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        """Draw a cohort: positions of clients."""
        ...


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
    process: Participation

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


def cohort(participation: Participation, clients: int, *, seed: int, number: int) -> list[int]:
    """Give the cohort of a round, ascending: a function of (seed, number) and the process alone.

    >>> cohort(Fixed(3), 10, seed=0, number=1) == cohort(Fixed(3), 10, seed=0, number=1)
    True
    """
    drawn = participation.draw(clients, numpy_generator(seed, "cohort", round_number=number))
    positions = sorted(int(position) for position in drawn)
    if len(set(positions)) < len(positions) or any(not 0 <= position < clients for position in positions):
        raise SettingError(
            f"participation {spelled(participation)} drew {positions} in round {number}: a cohort is some of the "
            f"positions 0 to {clients - 1}, each at most once"
        )
    return positions


def spelled(participation: Participation) -> str:
    """Give the text that settings have for a process; of one that says nothing of itself, the name of its class.

    >>> spelled(Between(4, 28))
    'between:4-28'
    """
    kind = type(participation)
    silent = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    return f"{kind.__module__}.{kind.__qualname__}" if silent else str(participation)


def participation_of(given: object) -> Participation:
    """Make a participation process of what was given: one itself, a number of clients, or a text.

    >>> participation_of(20), participation_of("binomial:0.2"), participation_of("between:4-28")
    (Fixed(r=20), Binomial(p=0.2), Between(low=4, high=28))
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return Fixed(given)
    if isinstance(given, str):
        return _read(given)
    if isinstance(given, Participation) and not isinstance(given, type):
        return given
    raise SettingError(
        f"participation must be a number of clients per round, Fixed, Binomial, Between, Everyone or a process of your "
        f"own with check, expected and draw, not {given!r}"
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
            case _ if not value:
                return Fixed(int(kind))
            case _:
                return _guest(text.strip())
    except ValueError as error:
        if isinstance(error, UserError):
            raise
    raise SettingError(
        f"cannot read participation {text!r}: give a number of clients (20), everyone, binomial:0.2, between:4-28, or "
        f"module:Name of a process of your own"
    )


def _guest(text: str) -> Participation:
    found = load_object(text, "participation")
    try:
        process = found() if isinstance(found, type) else found
    except TypeError as error:
        raise SettingError(f"participation {text!r} cannot be made without arguments: {error}") from error
    if not isinstance(process, Participation):
        raise SettingError(f"participation {text!r} is no process: it needs check, expected and draw")
    return Guest(text, process)


def _check_size(wanted: int, clients: int) -> None:
    if wanted > clients:
        raise SettingError(
            f"participation asks for {wanted} clients per round, but the federation has {clients}"
        )
