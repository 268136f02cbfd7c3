"""Was this client in? An attacker who knows everybody's data tries to tell from the weights that are released.

    python examples/membership.py --trials 4 --rounds 2
    python examples/membership.py --trials 200 --rounds 10 --out membership.json

In half of the trials one client may be drawn like the others, in the other half it never is. The attacker sees the
shared weights of every round and knows the data of all clients, the method and every setting: all but who took part
when, and the noise. It computes what each client would send at the weights of a round, takes from the server's step
what the others would have added on average, and measures how much of that one client's direction is left. The table has
the share of trials that it tells right with the best threshold, and the most that epsilon and delta allow anybody.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import pairwise
from math import exp, inf
from pathlib import Path
from typing import TypedDict

import numpy as np

import pflego
from pflego.engines.local import LocalEngine
from pflego.engines.play import Exchange
from pflego.exchange.accountant import Accountant, sampling_of
from pflego.exchange.privacy import Guard
from pflego.exchange.round import Round
from pflego.federation.draws import cohort
from pflego.learning.problems import Problems
from pflego.weights import Weights, minus, weighted_sum

CHANCE, RATE, CLIP, DELTA = 0.5, 0.1, 0.05, 1e-3
TARGET = 0  # the position of the client that is looked for
# heads that are solved for keep no state: what a client sends depends on the weights alone
METHOD = pflego.PFLEGO(head_optimizer="solve", server_lr=RATE, server_optimizer="sgd")


class Row(TypedDict):
    """What came of one noise."""

    noise: float
    epsilon: float | None  # None: infinite
    right: float  # share of trials that the attacker told right
    most: float  # that anybody can


class World:
    """Twenty clients of digits, and how their rounds are played."""

    def __init__(self) -> None:
        self.federation = pflego.load("digits", clients=20, classes_per_client=2, seed=0)
        model = pflego.models.build("mlp", (64,), seed=0)
        problems = Problems(self.federation, model)
        states = {c: METHOD.init_state(problems[i], 0) for i, c in enumerate(self.federation.ids)}
        self.first = METHOD.init_shared(model, problems.outputs, 0)
        self.engine = LocalEngine(problems, METHOD, states, together=False, evaluate=False)
        expected = CHANCE * len(self.federation)
        self.exchange = Exchange.of(METHOD, self.federation.sizes, expected=expected, weighting="equal")
        self.everyone = range(len(self.federation))

    def released(self, noise: float, rounds: int, seed: int, *, present: bool) -> list[Weights]:
        """Play rounds with or without the target; give the weights before the first and after each."""
        privacy = pflego.ClientPrivacy(clip=CLIP, noise=noise, delta=DELTA)
        exchange = replace(self.exchange, privacy=privacy, seed=seed)
        weights = [self.first]
        for number in range(1, rounds + 1):
            drawn = cohort(pflego.Binomial(CHANCE), self.federation.ids, seed=seed, number=number)
            asked = [position for position in drawn if present or position != TARGET]
            played = exchange.play(
                self.engine,
                number,
                weights[-1],
                {},
                asked,
                ids=self.federation.ids,
                keep=lambda changed: None,
            )
            weights.append(played.shared)
        return weights

    def sent(self, shared: Weights) -> list[Weights]:
        """Compute what every client would send, clipped."""
        guard = Guard(pflego.ClientPrivacy(clip=CLIP), {}, 1.0, b"", Round(1))
        turns = self.exchange.turns(self.exchange.round(1), self.everyone)
        return [guard.bounded(o.contribution or {}) for o in self.engine.run(turns, shared).outcomes]

    def score(self, weights: list[Weights]) -> float:
        """Measure how often the target seems to have taken part, in rounds."""
        total = 0.0
        for before, after in pairwise(weights):
            summed = weighted_sum([(CHANCE * len(self.federation) / RATE, minus(before, after))])
            sent = self.sent(before)
            others = weighted_sum([(CHANCE, one) for i, one in enumerate(sent) if i != TARGET])
            total += dot(minus(summed, others), sent[TARGET]) / dot(sent[TARGET], sent[TARGET])
        return total


def dot(one: Weights, other: Weights) -> float:
    """Give the inner product."""
    return sum(float((tensor * other[name]).sum()) for name, tensor in one.items())


def told_right(absent: list[float], present: list[float]) -> float:
    """Give the share told right by the best threshold, half of both kinds."""
    thresholds = sorted([*absent, *present])
    shares = [
        (np.mean(np.array(absent) < threshold) + np.mean(np.array(present) >= threshold)) / 2
        for threshold in [-inf, *thresholds]
    ]
    return float(max(shares))


def most_right(epsilon: float) -> float:
    """Give the largest share that anybody tells right: 1/2 + 1/2 (e^eps - 1 + 2 delta) / (e^eps + 1)."""
    return 1.0 if epsilon > 50 else 0.5 + 0.5 * (exp(epsilon) - 1 + 2 * DELTA) / (exp(epsilon) + 1)


def main() -> None:
    """Try every noise, and say how often the attacker was right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--noises", default="0,0.5,1,2,5")
    parser.add_argument("--trials", type=int, default=100, help="with the client, and as many without")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    world, rows = World(), []
    sampling = sampling_of(pflego.Binomial(CHANCE), world.federation.ids)
    for noise in (float(word) for word in given.noises.split(",")):
        absent, present = (
            [
                world.score(world.released(noise, given.rounds, 2 * trial + there, present=bool(there)))
                for trial in range(given.trials)
            ]
            for there in (0, 1)
        )
        epsilon = Accountant(sampling, noise, DELTA).epsilon(given.rounds)
        rows.append(
            Row(
                noise=noise,
                epsilon=None if epsilon == inf else round(epsilon, 3),
                right=round(told_right(absent, present), 3),
                most=round(most_right(epsilon), 3),
            )
        )
        print(rows[-1], flush=True)
    if given.out:
        given.out.write_text(json.dumps({**vars(given), "out": None, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
