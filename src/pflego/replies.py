"""Whose reply arrives: lost ones and late ones, as in real networks, drawn from the seed.

A client whose reply is lost has done its work all the same, and keeps its new head.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from pflego.errors import UserError, check_not_negative, check_positive
from pflego.federation import ClientId
from pflego.randomness import numpy_generator


@dataclass(frozen=True)
class Speed:
    """How fast clients are: every client has a speed of its own, log-normal around a median.

    Parameters
    ----------
    samples_per_second
        The median client's, for one pass through the backbone, in either direction.
    spread
        Standard deviation of the logarithm: 0.5 makes the slowest of a hundred about three times slower than the
        median, 0 all alike.
    """

    samples_per_second: float = 1000.0
    spread: float = 0.5

    def __post_init__(self) -> None:
        check_positive("samples_per_second", self.samples_per_second)
        check_not_negative("spread", self.spread)
        if self.spread > 5:
            raise UserError(
                f"spread must be at most 5, where speeds differ a millionfold, not {self.spread!r}"
            )

    def seconds(self, *, samples: int, passes: int, client: ClientId, seed: int) -> float:
        """How long a client takes for passes over its samples."""
        draw = numpy_generator(seed, "speed", client=client).standard_normal()
        return samples * passes / (self.samples_per_second * exp(self.spread * draw))


@dataclass(frozen=True)
class Network:
    """What happens to replies on their way.

    Parameters
    ----------
    dropout
        The probability that a reply never arrives.
    deadline
        Seconds the server waits; slower clients are too late. None: it waits for everybody.
    speed
        How fast clients are.
    """

    dropout: float = 0.0
    deadline: float | None = None
    speed: Speed = Speed()

    def __post_init__(self) -> None:
        check_not_negative("dropout", self.dropout)
        if self.dropout >= 1:
            raise UserError(f"dropout must be a probability below 1, not {self.dropout!r}")
        if self.deadline is not None:
            check_positive("deadline", self.deadline)

    @property
    def lossless(self) -> bool:
        """Whether every reply arrives."""
        return not self.dropout and self.deadline is None

    def delivers(self, *, samples: int, passes: int, client: ClientId, round: int, seed: int) -> bool:
        """Whether a client's reply in a round arrives, and in time."""
        if (
            self.dropout
            and numpy_generator(seed, "dropout", round=round, client=client).random() < self.dropout
        ):
            return False
        if self.deadline is None:
            return True
        return self.speed.seconds(samples=samples, passes=passes, client=client, seed=seed) <= self.deadline
