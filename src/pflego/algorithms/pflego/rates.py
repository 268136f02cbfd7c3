"""PFLEGO's rates: as given, or from the theory.

client_lr="auto" is beta = 1/L_i, the rate that Proposition 2 allows client i in this round, which also caps the head's
last step. server_lr="auto" is r/I 1/L with the largest smoothness constant that the round's clients measure.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from pflego.errors import SettingError
from pflego.exchange.round import Round
from pflego.learning.heads import Descent
from pflego.learning.heads.rules import Rule
from pflego.learning.problem import Problem
from pflego.learning.theory import best_rate, client_bound, server_bound
from pflego.weights import Weights

if TYPE_CHECKING:
    from pflego.algorithms.pflego.algorithm import PFLEGO
    from pflego.algorithms.pflego.common_head import CommonHead, OwnHead

SMOOTHNESS = "smoothness"  # what a client adds to its contribution where the server's rate depends on it
_DEFAULTS = {"server_lr": (0.003, 0.002), "head_decay": (0.0, 0.1)}  # with plain heads, with a common one
_ITERATIONS = 5  # of the power method on the backbone: each costs a pass both ways


def resolve_defaults(algorithm: PFLEGO) -> None:
    """Fill in what depends on the kind of heads."""
    for name, (plain, common) in _DEFAULTS.items():
        if getattr(algorithm, name) is None:
            object.__setattr__(algorithm, name, common if algorithm.common_head else plain)


@dataclass(frozen=True)
class Rates:
    """beta, rho and what bounds them."""

    client: float | Literal["auto"]
    joint_rate: float | Literal["auto"]
    rule: Rule
    momentum: float
    decay: float

    def check(self, server_optimizer: str) -> None:
        """Refuse rates from the theory for optimisers that it does not speak of."""
        if self.joint_rate == "auto" and server_optimizer != "sgd":
            raise SettingError(
                f"server_lr='auto' is for server_optimizer='sgd': give {server_optimizer} a number"
            )
        if self.client == "auto" and self.rule == "adam":
            raise SettingError(
                "client_lr='auto' is no rate for Adam, whose steps do not grow with the gradient: give one"
            )

    def descent(
        self, problem: Problem, heads: OwnHead | CommonHead, shared: Weights, state: Weights, features: Tensor
    ) -> Descent:
        """Say how a client's head goes downhill in this round, and the most its last step may be."""
        limit = inf
        if "auto" in (self.client, self.joint_rate):
            head = heads.whole(shared, state, problem)
            limit = best_rate(problem.head_smoothness(head, features) + self.decay)
        rate = limit if self.client == "auto" else self.client
        return Descent(rate, self.rule, self.momentum, self.decay, heads.anchor(shared, problem), limit)

    def measure(self, problem: Problem, weights: Weights, descent: Descent, *, common: bool) -> float:
        """L of a client's loss in what the server moves, where the server's rate depends on it; 0 elsewhere."""
        if self.joint_rate != "auto":
            return 0.0
        curvature = problem.backbone_smoothness(weights, _ITERATIONS)
        if common and descent.limit:
            curvature = max(curvature, 1 / descent.limit)  # the server's step moves W_0 too
        return curvature

    def joint(self, now: Round, curvature: float) -> float:
        """rho I/r, the rate of the head's part of the joint step."""
        if self.joint_rate == "auto":
            return 1 / curvature if curvature else inf
        return self.joint_rate * now.scale

    def server(self, now: Round, aggregate: Weights) -> float:
        """rho."""
        if self.joint_rate == "auto":
            return best_rate(float(aggregate[SMOOTHNESS]) * now.scale)
        return self.joint_rate

    def fixed(self, server_optimizer: str) -> set[str]:
        """Name the rates that were given as numbers and that Proposition 2 bounds."""
        client = self.client != "auto" and self.rule == "gd"
        server = self.joint_rate != "auto" and server_optimizer == "sgd"
        return {name for name, given in [("client_lr", client), ("server_lr", server)] if given}

    def warn(
        self, now: Round, start: Weights, fitted: Weights, problem: Problem, server_optimizer: str
    ) -> str | None:
        """Name Proposition 2's bounds where a fixed rate exceeds one."""
        fixed, bounds = self.fixed(server_optimizer), dict[str, tuple[object, float]]()
        if "client_lr" in fixed:
            curvature = problem.head_smoothness(start, problem.forward(start).features)
            bounds["client_lr"] = self.client, client_bound(curvature)
        if "server_lr" in fixed:
            with suppress(RuntimeError):  # a backbone that cannot be differentiated twice trains all the same
                curvature = problem.backbone_smoothness(fitted, _ITERATIONS)
                bounds["server_lr"] = self.joint_rate, server_bound(curvature, scale=now.scale)
        words = [
            f"{name}={rate:g} is above {bound:.3g}, the bound of Proposition 2 for client "
            f"{problem.client.id!r} at the start, and may go uphill; {name}='auto' stays below it"
            for name, (rate, bound) in bounds.items()
            if isinstance(rate, int | float) and rate >= bound
        ]
        return "; ".join(words) or None
