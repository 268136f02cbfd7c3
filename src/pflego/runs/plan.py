"""What a run was asked for, as objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pflego.algorithms.base import Algorithm
from pflego.engines.play import Exchange
from pflego.exchange.aggregation import Aggregation, Mean
from pflego.exchange.transforms import Transform
from pflego.exchange.weighting import Missing, WeightingName
from pflego.federation.network import Network
from pflego.federation.participation import Everyone, Participation, cohort
from pflego.learning.problem import Streaming


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a run goes: who takes part, what happens to replies, how they are combined, how long it lasts."""

    rounds: int
    participation: Participation = Everyone()
    network: Network = Network()
    weighting: WeightingName = "samples"
    aggregation: Aggregation = Mean()
    missing: Missing = "zero"
    transforms: Sequence[Transform] = ()
    streaming: Streaming = Streaming()
    seed: int = 0
    evaluate_every: int | None = 10
    evaluate_adapted: bool = False
    evaluate_training: bool = False
    joined_after: Sequence[int] = field(default=())  # the rounds after which clients joined, one per client

    def exchange(self, algorithm: Algorithm, sizes: npt.NDArray[np.int64]) -> Exchange:
        """Say how a method's clients and server speak to each other, for clients with these sample counts."""
        return Exchange.of(
            algorithm,
            sizes,
            expected=self.participation.expected(len(sizes)),
            weighting=self.weighting,
            aggregation=self.aggregation,
            missing=self.missing,
            transforms=self.transforms,
            seed=self.seed,
        )

    def cohort(self, number: int, clients: int) -> list[int]:
        """Draw who takes part in a round: positions, ascending. Those who joined later were not there."""
        there = clients - sum(after >= number for after in self.joined_after)
        return cohort(self.participation, there, seed=self.seed, number=number)

    def evaluates(self, number: int) -> bool:
        """Tell whether everyone is evaluated after a round."""
        if self.evaluate_every is None:
            return False
        return number == self.rounds or bool(self.evaluate_every and number % self.evaluate_every == 0)
