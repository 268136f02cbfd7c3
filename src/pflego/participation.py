"""Who takes part in a round.

A participation process draws a cohort and knows its own expectation r, so that I/r is always the inverse of
a client's chance to take part: Pr(i in cohort) = r / I.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pflego.errors import UserError, check_positive
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
        check_positive("participation: the number of clients a round", self.r, whole=True)

    def check(self, clients: int) -> None:
        """r clients must exist."""
        _check_size(self.r, clients)

    def expected(self, clients: int) -> float:
        """r itself."""
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
            raise UserError(f"participation: the probability to take part is at most 1, not {self.p}")

    def check(self, clients: int) -> None:
        """Any federation will do."""

    def expected(self, clients: int) -> float:
        """I p."""
        return clients * self.p

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        """Toss a coin a client: their number is binomial, and any cohort of that size is as likely."""
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
            raise UserError(f"participation: the smallest number {self.low} is above the largest {self.high}")

    def check(self, clients: int) -> None:
        """As many clients as may be drawn must exist."""
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
        """Any federation will do."""

    def expected(self, clients: int) -> float:
        """I."""
        return clients

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        """Take everybody."""
        return np.arange(clients)

    def __str__(self) -> str:
        return "everyone"


def cohort(participation: Participation, clients: int, *, seed: int, round: int) -> list[int]:
    """Give a round's cohort in ascending order, a function of (seed, round) and the process alone.

    >>> cohort(Fixed(3), 10, seed=0, round=1) == cohort(Fixed(3), 10, seed=0, round=1)
    True
    """
    drawn = participation.draw(clients, numpy_generator(seed, "cohort", round=round))
    return sorted(int(position) for position in drawn)


def parse(text: str | int) -> Participation:
    """Read a participation process as the command line and settings files spell it.

    >>> parse(20), parse("binomial:0.2"), parse("between:4-28"), parse("everyone")
    (Fixed(r=20), Binomial(p=0.2), Between(low=4, high=28), Everyone())
    """
    kind, _, value = str(text).strip().lower().partition(":")
    try:
        match kind:
            case "everyone" if not value:
                return Everyone()
            case "binomial":
                return Binomial(float(value))
            case "between":
                low, high = value.split("-")
                return Between(int(low), int(high))
            case _ if not value:
                return Fixed(int(kind))
    except ValueError as error:
        if isinstance(error, UserError):
            raise
    raise UserError(
        f"cannot read participation {text!r}: give a number of clients (20), everyone, binomial:0.2 or between:4-28"
    )


def _check_size(wanted: int, clients: int) -> None:
    if wanted > clients:
        raise UserError(f"participation asks for {wanted} clients a round, but the federation has {clients}")
