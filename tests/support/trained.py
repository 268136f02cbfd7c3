"""Rounds of a method in a small world, as the tests of single methods train them."""

from __future__ import annotations

from typing import Any

import pflego
from tests.support.reference import World

TAU, BETA, ROUNDS, SEED = 7, 0.15, 6, 4
PLAIN: dict[str, Any] = {"client_lr": BETA, "head_init": "zeros"}


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    """Let three of the clients take part in each round, unless it is said otherwise."""
    options = {"rounds": ROUNDS, "participation": 3, "seed": SEED, **options}
    return pflego.train(twin.federation, twin.model, algorithm, **options)
