"""Whose reply arrives, and when: lost ones and late ones, as in real networks, drawn from the seed.

A client whose reply is lost has done its work all the same, and keeps its new head.

Losses come alone, or in bursts (Gilbert, 1960; Elliott, 1963): a client's line is good or bad, a reply is lost where it
is bad, and the line changes between rounds with

    Pr(bad -> good) = 1 / burst        Pr(good -> bad) = dropout / (1 - dropout) / burst

so that a burst lasts `burst` rounds on average, and a reply is lost with probability `dropout` in any one round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp
from typing import Annotated

import numpy as np
import numpy.typing as npt

from pflego.declaration import (
    Limits,
    NotNegative,
    Positive,
    Probability,
    Simulated,
    Spelled,
    check_fields,
)
from pflego.errors import SettingError
from pflego.federation.roster import ClientId
from pflego.randomness import numpy_generator

_LINES = 4096  # clients whose lines are remembered


@dataclass(frozen=True)
class Speed:
    """How fast clients and their lines are: every client has speeds of its own, log-normal around a median.

    Parameters
    ----------
    samples_per_second
        Samples per second of the median client, for one pass through the backbone in either direction.
    spread
        How much clients' speeds differ: the standard deviation of the logarithm. 0.5 makes the slowest of a hundred
        about three times slower than the median, 0 all alike, and 5 makes speeds differ a millionfold.
    bandwidth
        Bytes per second of the median client's line, up and down; if not given, sending takes no time.
    latency
        Seconds that a message of the median client is on its way, whatever its size; there are two in a round.
    """

    samples_per_second: Annotated[Positive, Simulated] = 1000.0
    spread: Annotated[float, Limits(least=0, most=5), Spelled("speed_spread"), Simulated] = 0.5
    bandwidth: Annotated[Positive | None, Simulated] = None
    latency: Annotated[NotNegative, Simulated] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def seconds(self, *, samples: int, passes: float, client: ClientId, seed: int, sent: int = 0) -> float:
        """Compute how many seconds a client takes for passes over its samples, and for the bytes of its messages."""
        working = samples * passes / (self.samples_per_second * self._factor("speed", client, seed))
        sending = sent / (self.bandwidth * self._factor("bandwidth", client, seed)) if self.bandwidth else 0.0
        waiting = 2 * self.latency / self._factor("latency", client, seed) if self.latency else 0.0
        return working + sending + waiting

    def _factor(self, what: str, client: ClientId, seed: int) -> float:
        return exp(self.spread * numpy_generator(seed, what, client=client).standard_normal())


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
    burst
        The mean length of a burst of losses, in rounds; None: every reply is lost by itself.
    """

    dropout: Probability = 0.0
    deadline: Positive | None = None
    speed: Speed = Speed()
    burst: Annotated[float | None, Limits(least=1)] = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.burst is not None and self.dropout > self.burst * (1 - self.dropout):
            raise SettingError(
                f"burst={self.burst:g} is too short for dropout={self.dropout:g}: where that much is lost, bursts last "
                f"at least {self.dropout / (1 - self.dropout):.3g} rounds on average"
            )

    @property
    def lossless(self) -> bool:
        """Whether every reply arrives."""
        return not self.dropout and self.deadline is None

    @property
    def timed(self) -> bool:
        """Whether anybody asked how long replies take."""
        return self.deadline is not None or self.speed.bandwidth is not None or bool(self.speed.latency)

    def delivers(
        self, *, samples: int, passes: float, client: ClientId, number: int, seed: int, sent: int = 0
    ) -> bool:
        """Tell whether a client's reply in a round arrives, and in time."""
        if self.dropout and self.loses(client=client, number=number, seed=seed):
            return False
        if self.deadline is None:
            return True
        took = self.speed.seconds(samples=samples, passes=passes, client=client, seed=seed, sent=sent)
        return took <= self.deadline

    def loses(self, *, client: ClientId, number: int, seed: int) -> bool:
        """Tell whether a client's reply in a round never arrives."""
        if self.burst is None:
            drawn = numpy_generator(seed, "dropout", round_number=number, client=client).random()
            return bool(drawn < self.dropout)
        rounds = 1 << number.bit_length()  # so that a line is drawn anew only when the rounds have doubled
        return bool(_line(seed, client, self.dropout, self.burst, rounds)[number - 1])

    def waited(self, slowest: float | None, *, missing: int) -> float:
        """Compute the seconds that a server waits in a round: for the slowest, or to the deadline if one is missing."""
        if self.deadline is not None and missing:
            return self.deadline
        return slowest or 0.0


@lru_cache(maxsize=_LINES)
def _line(seed: int, client: ClientId, dropout: float, burst: float, rounds: int) -> npt.NDArray[np.bool_]:
    """Draw in which of the first rounds a client's line is bad; more rounds have the same beginning."""
    draws = numpy_generator(seed, "burst", client=client).random(rounds)
    recovers, breaks = 1 / burst, dropout / (1 - dropout) / burst
    bad = np.empty(rounds, dtype=bool)
    bad[0] = draws[0] < dropout
    for t in range(1, rounds):
        bad[t] = draws[t] >= recovers if bad[t - 1] else draws[t] < breaks
    return bad
