"""How much privacy T rounds cost: epsilon at a delta, by Google's dp-accounting.

    Everyone               Gaussian mechanism, T times                             add or remove a client   PLD
    Binomial, Independent  Poisson sampling of it, at the largest chance           add or remove a client   PLD
    Fixed, Between         sampling r of I without replacement, r the largest      replace a client         RDP

A client that is replaced moves a sum by up to 2 C, one that comes or goes by C: so the noise multiplier is z / 2 where
cohorts have a size of their own. A cohort of random size that does not depend on data is at most as costly as one of
the largest size, for each order of RDP. A client's own chance p_i at most q: whoever sees sums sampled at q can make
those sampled at p_i of them. Replies that do not arrive change nothing: nobody promises that they will not.

Privacy loss distributions (PLD) are composed numerically and rounded up; Rényi differential privacy (RDP) adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from math import inf, log, sqrt
from typing import Any

from pflego.errors import MissingExtraError, SettingError
from pflego.federation.client import ClientId
from pflego.federation.draws import Participation, spelled
from pflego.federation.participation import Between, Binomial, Everyone, Fixed
from pflego.federation.unequal import Daily, Independent

_INTERVAL = 1e-3  # of privacy losses, which are rounded up to multiples of it
_SEARCH = 1e-3  # relative, of a noise that is looked for


@dataclass(frozen=True)
class Sampling:
    """How cohorts are drawn, as far as privacy goes."""

    chance: float  # the largest of anybody's to take part
    of: tuple[int, int] | None = None  # (r, I) where exactly r of I are drawn; None: each on its own

    @property
    def neighbours(self) -> str:
        """What the promise compares: two federations that differ in this."""
        return "adding or removing one client" if self.of is None else "replacing one client by another"


def sampling_of(participation: Participation, ids: Sequence[ClientId]) -> Sampling:
    """Say how a process draws cohorts; refuse one whose cost is not known."""
    match participation:
        case Everyone():
            return Sampling(1.0)
        case Binomial(p):
            return Sampling(p)
        case Fixed(r) if r < len(ids):
            return Sampling(r / len(ids), (r, len(ids)))
        case Between(_, high) if high < len(ids):
            return Sampling(high / len(ids), (high, len(ids)))
        case Between(low, high) if low < high:
            return Sampling(1.0, (high, len(ids)))
        case Fixed() | Between():  # everyone
            return Sampling(1.0)
        case Independent():
            return Sampling(float(participation.chances(ids, number=1, seed=0).max()))
        case Daily():
            return Sampling(participation.high)
    raise SettingError(
        f"no accountant knows what participation {spelled(participation)} costs in privacy: take binomial:0.2, a "
        "number of clients, everyone or independent:FILE"
    )


@dataclass(frozen=True)
class Accountant:
    """Says what rounds cost.

    Parameters
    ----------
    sampling
        How cohorts are drawn.
    noise
        The noise multiplier of a round.
    delta
        The probability with which the promise may fail.
    """

    sampling: Sampling
    noise: float
    delta: float

    def epsilon(self, rounds: int) -> float:
        """Compute epsilon after a number of rounds."""
        if not rounds:
            return 0.0
        return _epsilon(self.sampling, self.noise, self.delta, rounds) if self.noise else inf

    def most_rounds(self, epsilon: float, most: int) -> int:
        """Find how many rounds cost no more than epsilon, at most so many."""
        if self.epsilon(most) <= epsilon:
            return most
        done, beyond = 0, most  # the first is affordable, the second is not
        while beyond - done > 1:
            middle = (done + beyond) // 2
            done, beyond = (middle, beyond) if self.epsilon(middle) <= epsilon else (done, middle)
        return done


def noise_for(sampling: Sampling, *, epsilon: float, delta: float, rounds: int) -> float:
    """Find the least noise multiplier with which rounds cost no more than epsilon, to a thousandth of it."""

    def affordable(noise: float) -> bool:
        return Accountant(sampling, noise, delta).epsilon(rounds) <= epsilon

    high = max(0.5, sampling.chance * sqrt(rounds * log(1 / delta)) / epsilon)  # about right, for a start
    while not affordable(high):
        high *= 2
    low = high / 2
    while affordable(low):
        low, high = low / 2, low
    while high / low > 1 + _SEARCH:
        middle = sqrt(low * high)
        low, high = (low, middle) if affordable(middle) else (middle, high)
    return high


@lru_cache(maxsize=4096)
def _epsilon(sampling: Sampling, noise: float, delta: float, rounds: int) -> float:
    if sampling.of is not None:
        return float(_without_replacement(*sampling.of, noise)(rounds, delta))
    return float(_losses(sampling.chance, noise).self_compose(rounds).get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _losses(chance: float, noise: float) -> Any:
    """Give the privacy loss distribution of one round."""
    _library()
    pld = import_module("dp_accounting.pld.privacy_loss_distribution")
    return pld.from_gaussian_mechanism(noise, value_discretization_interval=_INTERVAL, sampling_prob=chance)


@lru_cache(maxsize=64)
def _without_replacement(sample: int, clients: int, noise: float) -> Callable[[int, float], float]:
    """Give epsilon of rounds and delta."""
    library = _library()
    rdp = import_module("dp_accounting.rdp.rdp_privacy_accountant")
    event = library.GaussianDpEvent(noise / 2)  # C from the one and C from the other
    if sample < clients:
        event = library.SampledWithoutReplacementDpEvent(clients, sample, event)
    one = rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
    one.compose(event)
    orders, costs = one.orders, one.rdp

    def epsilon(rounds: int, delta: float) -> float:
        return float(rdp.compute_epsilon(orders, rounds * costs, delta)[0])

    return epsilon


@cache
def _library() -> Any:
    try:
        return import_module("dp_accounting")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "what privacy costs is computed by dp-accounting, which is not installed: pip install 'pflego[privacy]'"
        ) from error
