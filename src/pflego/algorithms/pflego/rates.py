"""PFLEGO's rates: as given, or from the theory.

client_lr="auto" is beta = 1/L_i, the rate that Proposition 2 allows client i in this round. client_lr="centred" takes
the mean of the features out first, which is most of L_i: learning/heads/bound.py. Both cap the head's last step at
1/L_i, unless that is called exact.

server_lr="auto" is rho = r/I 1/L, or min_i pi_i 1/L where clients' chances differ: no client's part is then longer
than at 1/L. L bounds the step on theta and the head together, not only on each of them: for
f = (theta + w)^2 / 2 both blocks have a curvature of 1, and f one of 2. L is the largest of the clients' constants
that the server heard in earlier rounds, so that a round's rate does not depend on who takes part in it, which would
bias the step; a round before which nobody was heard is one of rate 0. The clients receive L with theta: head and
backbone step by the same constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from pflego.algorithms.optimizers import ADAMS_EPS
from pflego.errors import SettingError
from pflego.exchange.metrics import ABOVE_BOUND, RATE_OVER_BOUND, Metric, largest, total
from pflego.exchange.round import Round
from pflego.learning.head_group import HeadGroup
from pflego.learning.heads import Descent, HessianBound
from pflego.learning.heads.rules import Rule
from pflego.learning.problem import Problem
from pflego.learning.theory import best_rate, client_bound, server_bound
from pflego.weights import Weights, elementwise_largest, norm, plus

if TYPE_CHECKING:
    from pflego.algorithms.pflego.algorithm import PFLEGO
    from pflego.algorithms.pflego.safeguard import HeadWork
    from pflego.algorithms.pflego.solved import SolvedHeads
    from pflego.algorithms.pflego.stepped import SteppedHeads

SMOOTHNESS = "smoothness"  # L among the shared weights, and a client's own among what it sends
JOINT_SAMPLES = "samples of the joint step"  # what these are drawn for, where a round looks at some
_OWN = "own/"  # before the names of a client's own weights beside shared ones
_ITERATIONS = 50  # of the power method on backbone and head, at most: each costs a pass both ways
_TOLERANCE = 0.001  # it ends when one adds no more than this share
_ROUGHLY = 0.1  # the same for a step at home: 1/L has a factor of 2 to spare
_SOLVED_DECAY = 0.01  # of own heads that are solved for
_DEFAULTS = {  # with plain heads, with a common one
    "client_lr": ("centred", "auto"),
    "head_decay": (0.0, 0.1),
    "head_init": ("zeros", "centred"),
    "server_lr": (0.003, 0.002),
    "local_lr": ("auto", "auto"),
    "eps": (ADAMS_EPS, ADAMS_EPS),
}
_BY_BATCHES = {  # what differs where clients take mini-batches
    "server_lr": (0.01, 0.01),
    "local_lr": (0.05, 0.05),
    "eps": (0.0003, 0.0003),
}


def resolve_defaults(algorithm: PFLEGO) -> None:
    """Fill in what depends on the kind of heads. Nothing was checked yet: an array cannot be compared with a word."""
    solve = isinstance(algorithm.head_optimizer, str) and algorithm.head_optimizer == "solve"
    batches = algorithm.batch_size is not None
    for name, (plain, common) in {**_DEFAULTS, **(_BY_BATCHES if batches else {})}.items():
        if getattr(algorithm, name) is None:
            own = _SOLVED_DECAY if name == "head_decay" and solve else plain
            object.__setattr__(algorithm, name, common if algorithm.common_head is True else own)


def check_decay(algorithm: PFLEGO) -> None:
    """Refuse to solve for heads of which there may be no best."""
    if algorithm.head_optimizer == "solve" and algorithm.head_decay == 0:
        raise SettingError(
            "head_optimizer='solve' needs a head_decay above 0: without one there may be no best head"
        )


def moving(weights: Weights) -> Weights:
    """Leave out L, which no step moves."""
    return {name: tensor for name, tensor in weights.items() if name != SMOOTHNESS}


def emphasised(now: Round, problem: Problem, work: HeadWork, features: Tensor) -> tuple[float | None, float]:
    """Give a client's loss where its joint gradient is taken, a decay included, and what it multiplies that by."""
    if now.emphasis is None:
        return None, 1.0
    loss = problem.head_objective(work.head, features, work.descent)
    return loss, now.emphasis.factor(loss)


@dataclass(frozen=True)
class Rates:
    """beta, rho and what bounds them."""

    client: float | Literal["centred", "auto"]
    joint: float | Literal["auto"]
    rule: Rule
    momentum: float
    decay: float
    exact: bool  # whether the head's last step carries alpha_i, and no cap
    local: float | Literal["auto"] = "auto"  # eta, of joint steps at home

    def check(self, server_optimizer: str, *, at_home: bool, batches: bool) -> None:
        """Refuse rates from the theory for what it does not speak of."""
        if self.joint == "auto" and at_home:
            raise SettingError(
                "server_lr='auto' is for passes=1 over all samples: otherwise the server adds up moves, by "
                "server_lr=1 for their mean"
            )
        if self.local == "auto" and batches:
            raise SettingError(
                "local_lr='auto' is for passes over all samples: give mini-batches a number, or leave it out"
            )
        if self.joint == "auto" and server_optimizer != "sgd":
            raise SettingError(
                f"server_lr='auto' is for server_optimizer='sgd': give {server_optimizer} a number"
            )
        if isinstance(self.client, str) and self.rule == "adam":
            raise SettingError(
                f"client_lr={self.client!r} is no rate for Adam, whose steps do not grow with the gradient: give one"
            )

    def bounds(self, group: HeadGroup, heads: Sequence[Weights]) -> list[HessianBound]:
        """Bound the Hessian of every client's loss in its head, as the rate of its steps needs it."""
        if self.client == "centred":
            return group.hessian_bounds(heads)
        return list(map(HessianBound, group.smoothness(heads)))

    def descent(self, bound: HessianBound, anchor: Weights | None) -> Descent:
        """Say how a head with this bound goes downhill in this round, and the most its last step may be."""
        smoothness = bound.largest + self.decay
        follows = isinstance(self.client, str)
        capped = not self.exact and (follows or self.joint == "auto")
        descent = bound.descent(self.decay, anchor)
        return replace(
            descent,
            rate=descent.rate if isinstance(self.client, str) else self.client,
            rule=self.rule,
            momentum=self.momentum,
            limit=best_rate(smoothness) if capped else inf,
            follows_curvature=follows,
            smoothness=smoothness,
        )

    def last(self, now: Round, shared: Weights) -> float:
        """Compute the rate of the head's part of the joint step: rho / pi_i, and alpha_i where it is exact."""
        if self.joint == "auto":
            rate = best_rate(float(shared[SMOOTHNESS])) * (now.scale / now.largest_scale)
        else:
            rate = self.joint * now.scale
        return rate * (now.alpha if self.exact else 1)

    def server(self, now: Round, shared: Weights) -> float:
        """rho."""
        return best_rate(float(shared[SMOOTHNESS]) * now.scale) if self.joint == "auto" else self.joint

    def metrics(self, descent: Descent, last: float, *, steps: int) -> dict[str, Metric]:
        """Count a client whose head took steps above Proposition 2's bound, and by how much the largest was."""
        rates = [min(last, descent.limit)]
        if not isinstance(self.client, str) and self.rule == "gd" and steps:
            rates.append(self.client)
        ratio = max(rates) / client_bound(descent.smoothness)
        return {ABOVE_BOUND: total(ratio >= 1), RATE_OVER_BOUND: largest(ratio)}

    def first_shared(self) -> Weights:
        """L, of which nothing is known yet, where the rate of the joint step depends on it."""
        return {SMOOTHNESS: torch.zeros(())} if self.joint == "auto" else {}

    def largest_heard(self, parts: Sequence[Weights]) -> Weights:
        """Return the largest of the constants that these weights hold, if any."""
        return elementwise_largest([{n: t for n, t in part.items() if n == SMOOTHNESS} for part in parts])

    def measure(
        self,
        now: Round,
        problem: Problem,
        heads: SteppedHeads | SolvedHeads,
        shared: Weights,
        work: HeadWork,
        loss: float | None,
    ) -> Weights:
        """L of a client's part of the objective in all that the joint step moves, where its rate depends on it."""
        if self.joint != "auto":
            return {}
        constant = self._smoothness(problem, heads, shared, work.head, _TOLERANCE)
        if now.emphasis is not None and loss is not None:
            squared = _squared_gradient(problem, heads, shared, work) if now.emphasis.power else 0.0
            constant = now.emphasis.smoothness(constant, loss, squared)
        return {SMOOTHNESS: torch.tensor(constant)}

    def local_rate(
        self, problem: Problem, heads: SteppedHeads | SolvedHeads, shared: Weights, head: Weights
    ) -> float:
        """eta, the rate of a joint step that a client takes at home."""
        if self.local != "auto":
            return self.local
        return best_rate(self._smoothness(problem, heads, shared, head, _ROUGHLY))

    def batch_rate(self) -> float:
        """eta of mini-batches, whose curvature is not measured."""
        return cast(float, self.local)  # a number: see check

    def local_cap(self, rate: float, descent: Descent) -> float:
        """Hold an automatic eta to 1/L_i of the head as well, which is known anew at every pass."""
        known = self.local == "auto" and descent.smoothness
        return min(rate, best_rate(descent.smoothness)) if known else rate

    def _smoothness(
        self,
        problem: Problem,
        heads: SteppedHeads | SolvedHeads,
        shared: Weights,
        head: Weights,
        tolerance: float,
    ) -> float:
        """L in theta, W_0 and, unless heads are solved for, what of the head is the client's own."""
        parts, moves_own = heads.parts, heads.moves_own
        own = parts.own(shared, head, problem)
        own_part = {_OWN + name: tensor for name, tensor in own.items()} if moves_own else {}

        def own_at(point: Weights) -> Weights:
            return {name: point.get(_OWN + name, tensor) for name, tensor in own.items()}

        def weights_at(point: Weights) -> Weights:
            return {**point, **parts.whole(point, own_at(point), problem)}

        def penalty(point: Weights) -> Tensor:
            return self.decay / 2 * sum((w.square().sum() for w in own_at(point).values()), torch.zeros(()))

        return problem.smoothness(
            {**moving(shared), **own_part},
            weights_at,
            _ITERATIONS,
            tolerance=tolerance,
            penalty=penalty if self.decay and moves_own else None,
        )

    def warn(self, now: Round, weights: Weights, problem: Problem) -> str | None:
        """Name Proposition 2's bound where a fixed server_lr exceeds it, as one client sees it at the start."""
        if self.joint == "auto":
            return None
        with suppress(RuntimeError):  # a backbone that cannot be differentiated twice trains all the same
            bound = server_bound(problem.backbone_smoothness(weights, _ITERATIONS), scale=now.scale)
            if self.joint >= bound:
                return (
                    f"server_lr={self.joint:g} is above {bound:.3g}, the bound of Proposition 2 for client "
                    f"{problem.client.id!r} at the start, and may go uphill; server_lr='auto' stays below it"
                )
        return None


def _squared_gradient(
    problem: Problem, heads: SteppedHeads | SolvedHeads, shared: Weights, work: HeadWork
) -> float:
    """|g|^2 in all that the joint step moves: theta, W_0 if it is common, and what of the head is the client's own."""
    gradient = problem.gradient({**moving(shared), **work.head})
    slope = {name: gradient[name] for name in work.head}
    parts = [{name: tensor for name, tensor in gradient.items() if name not in slope}]
    if any(name in shared for name in slope):
        parts.append(slope)
    if heads.moves_own:
        parts.append(plus(slope, work.descent.pull(work.head)) if work.descent.decay else slope)
    return sum(norm(part) ** 2 for part in parts)
