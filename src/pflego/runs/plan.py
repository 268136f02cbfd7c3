"""What a run was asked for, as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from pflego.algorithms.base import Algorithm
from pflego.engines.play import Exchange
from pflego.errors import SettingError
from pflego.exchange.aggregation import Aggregation, Mean
from pflego.exchange.compression import Compression
from pflego.exchange.liars import Liars
from pflego.exchange.objective import Agnostic, Objective
from pflego.exchange.privacy import ClientPrivacy
from pflego.exchange.transforms import Transform
from pflego.exchange.weighting import WEIGHTINGS, Missing, Standing, WeightingName
from pflego.federation.draws import Equal, Participation, Unequal, check, cohort, scales
from pflego.federation.network import Network
from pflego.federation.participation import Everyone
from pflego.federation.population import Population, There
from pflego.federation.roster import ClientId, Federation
from pflego.federation.unequal import Estimated
from pflego.learning.streaming import Streaming


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a run goes: who takes part, what happens to replies, how they are combined, how long it lasts."""

    rounds: int
    participation: Participation = Everyone()
    population: Population | None = None
    network: Network = Network()
    weighting: WeightingName = "samples"
    objective: Objective | None = None
    liars: Liars | None = None
    aggregation: Aggregation = Mean()
    missing: Missing = "zero"
    privacy: ClientPrivacy | None = None
    transforms: Sequence[Transform] = ()
    compression: Compression | None = None
    streaming: Streaming = Streaming()
    seed: int = 0
    evaluate_every: int | None = 10
    evaluate_adapted: bool = False
    evaluate_training: bool = False
    joined_after: Sequence[int] = field(default=())  # the rounds after which clients joined, one per client
    secret: bytes | None = (
        None  # of a server of real clients: what cohorts and noise are drawn from, under privacy
    )

    def exchange(self, algorithm: Algorithm, federation: Federation) -> Exchange:
        """Say how a method's clients and server speak to each other."""
        return Exchange(
            algorithm,
            self._standings(federation),
            self.aggregation,
            self.missing,
            self.transforms,
            self.seed,
            self.objective,
            self.privacy,
            self.secret,
            self.liars,
        )

    def data(self, federation: Federation) -> Federation:
        """Give what clients train on: their own data, unless some lie about it."""
        return federation if self.liars is None else self.liars.data(federation, seed=self.seed)

    def _standings(self, federation: Federation) -> Callable[[int], Standing]:
        """Give how much clients count by round; what does not change is computed once."""
        ids, masses = federation.ids, federation.masses
        if self.liars is not None:
            masses = self.liars.counts(ids, masses, seed=self.seed)
        arrival = 1 - self.network.dropout if self.missing == "inverse" else 1.0

        def standing(number: int) -> Standing:
            if self.population is None:
                inverse = scales(self.participation, ids, number=number, seed=self._lottery)
                return Standing(WEIGHTINGS[self.weighting](masses), inverse, arrival)
            present = np.flatnonzero(self.there(number, ids))
            importance, inverse = np.zeros(len(ids)), np.ones(len(ids))
            importance[present] = WEIGHTINGS[self.weighting](masses[present])
            named = [ids[position] for position in present.tolist()]
            inverse[present] = scales(self.participation, named, number=number, seed=self.seed)
            return Standing(importance, inverse, arrival)

        if self.population is not None or not isinstance(self.participation, Equal):
            return lru_cache(maxsize=1)(standing)
        always = standing(1)
        return lambda number: always

    def there(self, number: int, ids: Sequence[ClientId]) -> There:
        """Say who is a member in a round, by position. Those who joined later were not there."""
        late = sum(after >= number for after in self.joined_after)
        there = np.arange(len(ids)) < len(ids) - late
        if self.population is not None:
            there &= self.population.there(ids, number=number, seed=self.seed)
        if not there.any():
            raise SettingError(f"population: nobody is a member in round {number}")
        return np.asarray(there)

    @property
    def _lottery(self) -> int:
        """The seed of cohorts: everybody's, or one that only the server knows."""
        return self.seed if self.secret is None else int.from_bytes(self.secret, "big")

    def cohort(self, number: int, ids: Sequence[ClientId]) -> list[int]:
        """Draw who takes part in a round among its members: positions, ascending."""
        if self.population is None:
            there = len(ids) - sum(after >= number for after in self.joined_after)
            return cohort(self.participation, ids[:there], seed=self._lottery, number=number)
        present = np.flatnonzero(self.there(number, ids)).tolist()
        named = [ids[position] for position in present]
        drawn = cohort(self.participation, named, seed=self.seed, number=number)
        return [present[position] for position in drawn]

    def check(self, ids: Sequence[ClientId], *, awaited: Sequence[ClientId] = ()) -> None:
        """Refuse clients that participation or population are not made for, and rounds with too few members.

        awaited: others who may come later, and may have chances of their own to take part.
        """
        check(self.participation, [*ids, *awaited] if isinstance(self.participation, Unequal) else ids)
        if self.population is None:
            return
        self.population.check(ids)
        if isinstance(self.objective, Agnostic) or isinstance(self.participation, Estimated):
            raise SettingError(
                "population: agnostic objectives and estimated participation are for clients that are there all along"
            )
        for number in self.population.changes(self.rounds):
            present = int(self.there(number, ids).sum())
            if isinstance(self.participation, Equal):
                try:
                    self.participation.check(present)
                except SettingError as error:
                    raise SettingError(
                        f"population: in round {number} there are {present} members: {error}"
                    ) from error

    def accounts(self, number: int) -> bool:
        """Tell whether it is said after a round how much privacy was spent: where everyone is evaluated, and last."""
        return number == self.rounds or self.evaluates(number)

    def evaluates(self, number: int) -> bool:
        """Tell whether everyone is evaluated after a round."""
        if self.evaluate_every is None:
            return False
        return number == self.rounds or bool(self.evaluate_every and number % self.evaluate_every == 0)
