"""How long a contest may be, for a budget of seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pflego.advice.contenders import Contender
from pflego.federation.roster import Federation
from pflego.runs.cost import Cost

_RATES_ROUNDS = 4  # a dear contender's rates are tried for a quarter of the rounds,
RATES_CLIENTS = 10  # with this many clients
_PLANS = [
    (20, 50),
    (20, 30),
    (20, 20),
    (12, 20),
    (12, 12),
    (8, 12),
    (8, 8),
]  # rounds and clients, dearest first
MOST_CLIENTS = _PLANS[0][1]

# What work takes, in seconds, on two modest cores. Reckoned, not measured, so that a plan is the same everywhere.
_STEP, _VISIT, _FLOP = 2.5e-4, 1e-3, 1 / 4e10


@dataclass(frozen=True)
class Plan:
    """How long a contest is, and about how many seconds it takes."""

    rounds: int
    clients: int
    seconds: float


def plan(
    costs: Mapping[str, Cost],
    competing: Sequence[Contender],
    federation: Federation,
    *,
    splits: int,
    budget: float,
    rounds: int | None = None,
    look_at: int | None = None,
) -> Plan:
    """Find the longest contest that a budget of seconds allows; the shortest, if it allows none."""
    samples = federation.samples / len(federation)
    for usual_rounds, usual_clients in _PLANS:
        length, clients = rounds or usual_rounds, min(look_at or usual_clients, len(federation))
        seconds = reckon(costs, competing, clients=clients, samples=samples, rounds=length, splits=splits)
        if seconds <= budget:
            break
    return Plan(length, clients, seconds)


def reckon(
    costs: Mapping[str, Cost],
    competing: Sequence[Contender],
    *,
    clients: int,
    samples: float,
    rounds: int,
    splits: int,
) -> float:
    """Estimate how many seconds a contest takes, with clients of this many samples."""
    total = 0.0
    for contender in competing:
        cost = costs[contender.name]
        visit = contender.passes * _STEP + _VISIT + cost.flops * samples / cost.samples * _FLOP
        variants = 1 if contender.dear else len(contender.variants)
        visits = variants * splits * rounds * clients
        if contender.dear:
            visits += len(contender.variants) * rates_rounds(rounds) * min(RATES_CLIENTS, clients)
        total += visits * visit
    return total


def rates_rounds(rounds: int) -> int:
    """Return the number of rounds for which the rates of a costly contender are tried."""
    return max(1, rounds // _RATES_ROUNDS)
