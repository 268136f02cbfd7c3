"""Rounds, participation and noise that a budget of privacy allows, before anything is trained.

    z         the noise multiplier with which T rounds cost epsilon at delta
    z / r     the deviation of the noise in a step, in units of the clip: what learning has to live with

More rounds ask for more noise in each, about sqrt(T); larger cohorts for more too, but less than they hide, so that
z / r falls. What more of them cost is messages, r T in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pflego.exchange.accountant import Sampling, noise_for, sampling_of
from pflego.federation.participation import Binomial, Fixed

NEAR = 1.25  # times the least noise: participation that comes so near is enough


@dataclass(frozen=True)
class Option:
    """One way to spend a budget."""

    rounds: int
    chance: float  # to take part in a round
    participants: float  # r
    noise: float  # z
    in_step: float  # z / r


def options(
    clients: int,
    *,
    epsilon: float,
    delta: float,
    rounds: Sequence[int],
    chances: Sequence[float],
    fixed: bool,
) -> list[Option]:
    """Compute the noise of every number of rounds with every participation.

    fixed: cohorts have exactly as many clients as their chance says, instead of about so many.
    """
    found = []
    for number in rounds:
        for chance in chances:
            sampling = _sampling(clients, chance, fixed=fixed)
            noise = noise_for(sampling, epsilon=epsilon, delta=delta, rounds=number)
            participants = sampling.of[0] if sampling.of else chance * clients
            found.append(Option(number, chance, participants, noise, noise / participants))
    return found


def advised(found: Sequence[Option]) -> Option:
    """Pick, for the most rounds, the smallest participation whose noise is near the least."""
    longest = [one for one in found if one.rounds == max(each.rounds for each in found)]
    least = min(one.in_step for one in longest)
    return min((one for one in longest if one.in_step <= NEAR * least), key=lambda one: one.chance)


def _sampling(clients: int, chance: float, *, fixed: bool) -> Sampling:
    process = Fixed(max(1, round(chance * clients))) if fixed else Binomial(chance)
    return sampling_of(process, range(clients))
