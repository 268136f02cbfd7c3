"""What a federation minimises: not always the mean loss.

    F(theta, W) = sum_i a_i phi(l_i)        grad F = sum_i a_i phi'(l_i) grad l_i

A client that computes its full loss can multiply its own gradient by phi'(l_i) at the very point where the gradient was
taken, and the step stays exact and unbiased. An objective says what phi' is, and keeps at the server what it needs
beside; it knows no method.

    QFair(q)        phi(l) = l^(q+1) / (q+1)                                    Li et al., 2020
    CVaR(tail)      min over eta of  eta + sum_i a_i max(l_i - eta, 0) / tail   the mean of the worst share of losses
    Agnostic(rate)  max over lambda on the simplex of  sum_i lambda_i l_i       Mohri et al., 2019
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
import torch

from pflego.declaration import Limits, NotNegative, Positive, check_fields
from pflego.errors import SettingError, UserError
from pflego.exchange.weighting import Floats
from pflego.weights import Weights

JOINT_LOSS = "joint_loss"  # the metric: l_i where the gradient was taken


@dataclass(frozen=True)
class Emphasis:
    """phi'(l) = times l^power where l is above a threshold, and 0 elsewhere: what one client is told.

    >>> Emphasis(power=2).factor(3.0), Emphasis(above=1.0, times=10.0).factor(0.9)
    (9.0, 0.0)
    """

    power: float = 0.0
    above: float | None = None
    times: float = 1.0
    constant: float = 1.0  # phi' is nowhere above it, in the mean over clients, where the power is 0

    def factor(self, loss: float) -> float:
        """phi'(l)."""
        if self.above is not None and loss <= self.above:
            return 0.0
        return self.times * float(loss**self.power) if self.power else self.times

    def smoothness(self, constant: float, loss: float, squared_gradient: float) -> float:
        """L of phi(l), from that of l: its Hessian is phi'(l) H + phi''(l) g g^T."""
        if not self.power:
            return self.constant * constant
        steep = self.power * loss ** (self.power - 1) if loss else 0.0
        return float(loss**self.power * constant + steep * squared_gradient)


@runtime_checkable
class Objective(Protocol):
    """What is minimised instead of the mean loss."""

    def first(self, importance: Floats) -> Weights:
        """Give what the server keeps for it, before the first round."""
        ...

    def emphases(self, state: Weights, cohort: Sequence[int], importance: Floats) -> list[Emphasis]:
        """Say what each client of a cohort multiplies its gradient by."""
        ...

    def step(
        self, state: Weights, losses: Mapping[int, float], weights: Mapping[int, float], importance: Floats
    ) -> Weights:
        """Move what the server keeps, by the losses that arrived and their unbiased weights a_i / Pr(arrived)."""
        ...


@dataclass(frozen=True)
class QFair:
    """Count a loss the more, the larger it is: q = 0 is the mean loss, a large q comes near the worst client's.

    Parameters
    ----------
    q
        The power of a client's loss that its gradient is multiplied by.
    """

    q: NotNegative = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    def first(self, importance: Floats) -> Weights:
        """Keep nothing."""
        return {}

    def emphases(self, state: Weights, cohort: Sequence[int], importance: Floats) -> list[Emphasis]:
        """l^q."""
        return [Emphasis(power=self.q)] * len(cohort)

    def step(
        self, state: Weights, losses: Mapping[int, float], weights: Mapping[int, float], importance: Floats
    ) -> Weights:
        """Keep nothing."""
        return state

    def __str__(self) -> str:
        return f"qfair:{self.q}"


@dataclass(frozen=True)
class CVaR:
    """Minimise the mean of the worst share of the clients' losses: the conditional value at risk.

    The threshold eta takes a gradient step in every round, together with all other weights.

    Parameters
    ----------
    tail
        The share of the federation that counts: 1 is everybody.
    rate
        The rate of eta's step.
    """

    tail: Annotated[float, Limits(above=0, most=1)] = 0.1
    rate: Positive = 0.01

    def __post_init__(self) -> None:
        check_fields(self)

    def first(self, importance: Floats) -> Weights:
        """eta = 0: at first everybody is above it."""
        return {"eta": torch.zeros((), dtype=torch.float64)}

    def emphases(self, state: Weights, cohort: Sequence[int], importance: Floats) -> list[Emphasis]:
        """1 / tail where a loss is above eta."""
        times = 1 / self.tail
        return [Emphasis(above=float(state["eta"]), times=times, constant=times)] * len(cohort)

    def step(
        self, state: Weights, losses: Mapping[int, float], weights: Mapping[int, float], importance: Floats
    ) -> Weights:
        """Descend along 1 - sum_i a_i 1(l_i > eta) / tail, estimated from those that arrived."""
        eta = float(state["eta"])
        above = sum(weights[position] for position, loss in losses.items() if loss > eta)
        return {"eta": torch.tensor(eta - self.rate * (1 - above / self.tail), dtype=torch.float64)}

    def __str__(self) -> str:
        return f"cvar:{self.tail}/{self.rate}"


@dataclass(frozen=True)
class Agnostic:
    """Minimise the loss under the worst weights there could be: lambda climbs while the weights descend.

    lambda begins at a_i. A client's part of the climb is its loss, divided by its chance to be heard.

    Parameters
    ----------
    rate
        The rate of lambda's step; 0 leaves it where it begins.
    """

    rate: NotNegative = 0.01

    def __post_init__(self) -> None:
        check_fields(self)

    def first(self, importance: Floats) -> Weights:
        """lambda = a."""
        return {"lambda": torch.from_numpy(importance.copy())}

    def emphases(self, state: Weights, cohort: Sequence[int], importance: Floats) -> list[Emphasis]:
        """lambda_i / a_i."""
        worst = state["lambda"]
        return [Emphasis(times=float(worst[position]) / float(importance[position])) for position in cohort]

    def step(
        self, state: Weights, losses: Mapping[int, float], weights: Mapping[int, float], importance: Floats
    ) -> Weights:
        """lambda <- the nearest point of the simplex to lambda + rate l_i / Pr(i arrived)."""
        climbed = state["lambda"].cpu().numpy().copy()
        for position, loss in losses.items():
            climbed[position] += self.rate * loss * weights[position] / importance[position]
        return {"lambda": torch.from_numpy(nearest_on_simplex(climbed))}

    def __str__(self) -> str:
        return f"agnostic:{self.rate}"


def nearest_on_simplex(point: Floats) -> Floats:
    """Project on {lambda >= 0, sum lambda = 1}.

    >>> nearest_on_simplex(np.array([0.9, 0.5, -2.0])).round(4).tolist()
    [0.7, 0.3, 0.0]
    """
    ranked = np.sort(point)[::-1]
    shifts = (np.cumsum(ranked) - 1) / np.arange(1, len(point) + 1)
    last = np.flatnonzero(ranked > shifts)[-1]
    return np.asarray(np.maximum(point - shifts[last], 0.0))


def objective_of(given: object) -> Objective | None:
    """Make an objective of what was given: one itself, or a text.

    >>> objective_of("qfair:2"), objective_of("cvar:0.1"), objective_of("agnostic:0.05")
    (QFair(q=2.0), CVaR(tail=0.1, rate=0.01), Agnostic(rate=0.05))
    """
    if given is None:
        return None
    if isinstance(given, str):
        return _read(given)
    if isinstance(given, Objective) and not isinstance(given, type):
        return given
    raise SettingError(f"objective must be QFair(q), CVaR(tail) or Agnostic(rate), not {given!r}")


def _read(text: str) -> Objective | None:
    kind, _, value = text.strip().partition(":")
    try:
        match kind.lower():
            case "mean" if not value:
                return None
            case "qfair":
                return QFair(float(value))
            case "cvar":
                tail, _, rate = value.partition("/")
                return CVaR(float(tail), *([float(rate)] if rate else []))
            case "agnostic":
                return Agnostic(float(value))
    except ValueError as error:
        if isinstance(error, UserError):
            raise
    raise SettingError(f"cannot read objective {text!r}: give mean, qfair:1, cvar:0.1 or agnostic:0.01")
