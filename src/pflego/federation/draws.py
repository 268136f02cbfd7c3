"""What a participation process is, and what is asked of one: a cohort, and how likely each client was to be in it.

    pi_i = Pr(i in cohort)     r = sum_i pi_i, the expected number of participants

Either all clients have the same chance, pi_i = r / I, and a process need only know r and how to draw; or it says every
client's chance in every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from pflego.errors import SettingError
from pflego.federation.client import ClientId
from pflego.randomness import numpy_generator

Positions: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


@runtime_checkable
class Equal(Protocol):
    """A participation process in which all clients have the same chance."""

    def check(self, clients: int) -> None:
        """Refuse a federation that is too small for it."""
        ...

    def expected(self, clients: int) -> float:
        """Give r, the expected number of participants."""
        ...

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        """Draw a cohort: positions of clients."""
        ...


@runtime_checkable
class Unequal(Protocol):
    """A participation process in which every client has a chance of its own."""

    def check_ids(self, ids: Sequence[ClientId]) -> None:
        """Refuse clients that it has no chance for."""
        ...

    def chances(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Floats:
        """Give pi_i of a round, in the order of ids: what weights are divided by."""
        ...

    def draw_ids(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Positions:
        """Draw the cohort of a round: positions in ids."""
        ...


Participation: TypeAlias = Equal | Unequal


def check(participation: Participation, ids: Sequence[ClientId]) -> None:
    """Refuse clients that a process is not made for."""
    if isinstance(participation, Unequal):
        participation.check_ids(ids)
    else:
        participation.check(len(ids))


def expected(
    participation: Participation, ids: Sequence[ClientId], *, number: int = 1, seed: int = 0
) -> float:
    """Give r, the expected number of participants in a round."""
    if isinstance(participation, Unequal):
        return float(participation.chances(ids, number=number, seed=seed).sum())
    return participation.expected(len(ids))


def scales(
    participation: Participation, ids: Sequence[ClientId], *, number: int = 1, seed: int = 0
) -> Floats:
    """Give 1 / pi_i of a round, in the order of ids."""
    if isinstance(participation, Unequal):
        chances = participation.chances(ids, number=number, seed=seed)
        if chances.shape != (len(ids),) or not ((chances > 0) & (chances <= 1)).all():
            raise SettingError(
                f"participation {spelled(participation)} must give {len(ids)} chances above 0 and at most 1"
            )
        return np.asarray(1 / chances)
    r = participation.expected(len(ids))
    if not r > 0:
        raise SettingError(f"participation expects {r} clients per round: it must be more than none")
    return np.full(len(ids), len(ids) / r)


def cohort(participation: Participation, ids: Sequence[ClientId], *, seed: int, number: int) -> list[int]:
    """Give the cohort of a round, ascending positions in ids: a function of (seed, number), process and ids alone."""
    if isinstance(participation, Unequal):
        drawn = participation.draw_ids(ids, number=number, seed=seed)
    else:
        generator = numpy_generator(seed, "cohort", round_number=number)
        drawn = participation.draw(len(ids), generator)
    positions = sorted(int(position) for position in drawn)
    if len(set(positions)) < len(positions) or any(not 0 <= position < len(ids) for position in positions):
        raise SettingError(
            f"participation {spelled(participation)} drew {positions} in round {number}: a cohort is some of the "
            f"positions 0 to {len(ids) - 1}, each at most once"
        )
    return positions


def spelled(participation: Participation) -> str:
    """Give the text that settings have for a process; of one that says nothing of itself, the name of its class."""
    kind = type(participation)
    silent = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    return f"{kind.__module__}.{kind.__qualname__}" if silent else str(participation)
