"""What a run was asked for, as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pflego.algorithms.base import Algorithm
from pflego.engines.play import Exchange
from pflego.exchange.aggregation import Aggregation, Mean
from pflego.exchange.objective import Objective
from pflego.exchange.transforms import Transform
from pflego.exchange.weighting import WEIGHTINGS, Missing, Standing, WeightingName
from pflego.federation.draws import Equal, Participation, cohort, scales
from pflego.federation.network import Network
from pflego.federation.participation import Everyone
from pflego.federation.roster import ClientId, Federation
from pflego.learning.problem import Streaming


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a run goes: who takes part, what happens to replies, how they are combined, how long it lasts."""

    rounds: int
    participation: Participation = Everyone()
    network: Network = Network()
    weighting: WeightingName = "samples"
    objective: Objective | None = None
    aggregation: Aggregation = Mean()
    missing: Missing = "zero"
    transforms: Sequence[Transform] = ()
    streaming: Streaming = Streaming()
    seed: int = 0
    evaluate_every: int | None = 10
    evaluate_adapted: bool = False
    evaluate_training: bool = False
    joined_after: Sequence[int] = field(default=())  # the rounds after which clients joined, one per client

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
        )

    def _standings(self, federation: Federation) -> Callable[[int], Standing]:
        """Give how much clients count by round; what does not change is computed once."""
        importance = WEIGHTINGS[self.weighting](federation.sizes)
        arrival = 1 - self.network.dropout if self.missing == "inverse" else 1.0

        def standing(number: int) -> Standing:
            inverse = scales(self.participation, federation.ids, number=number, seed=self.seed)
            return Standing(importance, inverse, arrival)

        if not isinstance(self.participation, Equal):
            return lru_cache(maxsize=1)(standing)
        always = standing(1)
        return lambda number: always

    def cohort(self, number: int, ids: Sequence[ClientId]) -> list[int]:
        """Draw who takes part in a round: positions, ascending. Those who joined later were not there."""
        there = len(ids) - sum(after >= number for after in self.joined_after)
        return cohort(self.participation, ids[:there], seed=self.seed, number=number)

    def evaluates(self, number: int) -> bool:
        """Tell whether everyone is evaluated after a round."""
        if self.evaluate_every is None:
            return False
        return number == self.rounds or bool(self.evaluate_every and number % self.evaluate_every == 0)
