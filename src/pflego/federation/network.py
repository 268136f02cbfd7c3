"""Whose reply arrives: lost ones and late ones, as in real networks, drawn from the seed.

A client whose reply is lost has done its work all the same, and keeps its new head.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Annotated

from pflego.declaration import Limits, Positive, Probability, Simulated, Spelled, check_fields
from pflego.federation.roster import ClientId
from pflego.randomness import numpy_generator


@dataclass(frozen=True)
class Speed:
    """How fast clients are: every client has a speed of its own, log-normal around a median.

    Parameters
    ----------
    samples_per_second
        Samples per second of the median client, for one pass through the backbone in either direction.
    spread
        How much clients' speeds differ: the standard deviation of the logarithm. 0.5 makes the slowest of a hundred
        about three times slower than the median, 0 all alike, and 5 makes speeds differ a millionfold.
    """

    samples_per_second: Annotated[Positive, Simulated] = 1000.0
    spread: Annotated[float, Limits(least=0, most=5), Spelled("speed_spread"), Simulated] = 0.5

    def __post_init__(self) -> None:
        check_fields(self)

    def seconds(self, *, samples: int, passes: float, client: ClientId, seed: int) -> float:
        """Compute how many seconds a client takes for passes over its samples."""
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

    dropout: Probability = 0.0
    deadline: Positive | None = None
    speed: Speed = Speed()

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def lossless(self) -> bool:
        """Whether every reply arrives."""
        return not self.dropout and self.deadline is None

    def delivers(self, *, samples: int, passes: float, client: ClientId, number: int, seed: int) -> bool:
        """Tell whether a client's reply in a round arrives, and in time."""
        if (
            self.dropout
            and numpy_generator(seed, "dropout", round_number=number, client=client).random() < self.dropout
        ):
            return False
        if self.deadline is None:
            return True
        return self.speed.seconds(samples=samples, passes=passes, client=client, seed=seed) <= self.deadline
