"""The linear head, in closed form.

A head is one array W, (K, M + 1), the bias in its last column. On features Phi, (n, M + 1) with a last column of ones,
targets t and residuals R = link(z) - t, both (n, K):

    z = Phi W^T        d loss / d W = R^T Phi / n        d loss / d phi = R W[:, :M] / n

Outputs are kept across, (K, n): short and wide, they go through memory in order. The residuals of a softmax sum to
zero over a sample's outputs, so K - 1 rows of differences W_k - W_K do the work of K.

With m the mean of the rows of Phi, C their covariance and c = 1/2 for the softmax, 1 for half the squared error, the
Hessian of the loss in every row of a head is at most c lambda_max(C) I + c m m^T, and at most L = c lambda_max(Phi^T
Phi / n).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pflego_light.arrays import Floats

Any2d: TypeAlias = npt.NDArray[np.floating]
_LARGE = np.float32(80)  # exp of it is a float32, and 1 / (1 + that) as good as 0
_AGAIN = 2  # times that a head that went uphill is tried again with a tenth of the rate


@dataclass(frozen=True)
class Gradient:
    """The loss at a head, and its gradient with respect to the head and to the features."""

    loss: float
    head: Floats  # (K, M + 1)
    features: Floats  # (n, M)


@dataclass(frozen=True)
class Sight:
    """What a head sees: features and targets."""

    features: Floats  # (n, M)
    targets: Floats  # (n, K)
    softmax: bool  # or half the squared error

    @cached_property
    def phi(self) -> Floats:
        """Features and a last column of ones, (n, M + 1)."""
        ones = np.ones((len(self.features), 1), np.float32)
        return np.ascontiguousarray(np.hstack([self.features, ones], dtype=np.float32))

    @cached_property
    def across(self) -> Floats:
        """The same, (M + 1, n)."""
        return np.ascontiguousarray(self.phi.T)

    @cached_property
    def wanted(self) -> Floats:
        """Targets, (K, n)."""
        return np.ascontiguousarray(self.targets.T)

    def outputs(self, head: Floats) -> Floats:
        """z, (K, n)."""
        return head @ self.across

    def loss(self, head: Floats) -> float:
        """Compute the mean loss over the samples."""
        return loss_of(self.outputs(head), self.wanted, softmax=self.softmax)

    def slope(self, head: Floats) -> Floats:
        """d loss / d W, (K, M + 1)."""
        if not self.softmax:
            return self._mean(self.outputs(head) - self.wanted)
        rows = self._mean(self._residual(head[:-1] - head[-1]))
        return np.vstack([rows, -rows.sum(axis=0, keepdims=True)])

    def _mean(self, residual: Floats) -> Floats:
        """R^T Phi / n, from residuals across."""
        found: Floats = residual @ self.phi / np.float32(len(self.phi))
        return found

    def _residual(self, difference: Floats) -> Floats:
        """softmax(z) - t of all outputs but the last, (K - 1, n), which stands at 0."""
        z = difference @ self.across
        if len(z) == 1:  # 1 / (1 + exp(-z)), in half the calls
            np.negative(z, out=z)
            np.exp(np.minimum(z, _LARGE, out=z), out=z)
            z += 1
            np.reciprocal(z, out=z)
            z -= self.wanted[:-1]
            return z
        top = z.max(axis=0, initial=0.0)
        z -= top
        np.exp(z, out=z)
        z /= z.sum(axis=0) + np.exp(-top)
        z -= self.wanted[:-1]
        return z

    def softmax_steps(
        self, head: Floats, count: int, rate: float, centred: Callable[[Floats], Floats]
    ) -> Floats:
        """Take gradient steps: on differences to the last row alone, which moves by the sum of what the others do not.

        With g_k the gradient of row k, W_k - W_K moves by rate (g_k + sum_j g_j), j over all rows but the last.
        """
        difference, moved = head[:-1] - head[-1], np.zeros_like(head[:-1])
        each = np.float32(rate / len(self.phi))
        for _ in range(count):
            move = centred(self._residual(difference) @ self.phi)
            move *= each
            moved += move
            difference -= move
            difference -= move if len(move) == 1 else move.sum(axis=0)
        return np.vstack([head[:-1] - moved, head[-1:] + moved.sum(axis=0, keepdims=True)])

    def gradient(self, head: Floats) -> Gradient:
        """Compute loss and joint gradient."""
        z = self.outputs(head)  # (K, n)
        residual = residual_of(z, self.wanted, softmax=self.softmax)
        slope: Floats = residual.T @ head[:, :-1] / np.float32(z.shape[1])
        loss = loss_of(z, self.wanted, softmax=self.softmax)
        return Gradient(loss, self._mean(residual), np.ascontiguousarray(slope))

    @property
    def curvature(self) -> float:
        """c."""
        return 0.5 if self.softmax else 1.0

    def smoothness(self, start: Floats, iterations: int) -> float:
        """L, by the power method."""
        return self._largest(self.phi, start, iterations)

    def bound(self, start: Floats, iterations: int, least: float) -> Bound:
        """Bound the Hessian, the mean of the features apart; its spread is at least a share `least` of that."""
        mean = self.phi.mean(axis=0, dtype=np.float64).astype(np.float32)
        constant = self._largest(self.phi - mean, start, iterations)
        return Bound(max(constant, least * self.curvature * float(mean @ mean)), mean, self.curvature)

    def _largest(self, phi: Floats, start: Floats, iterations: int) -> float:
        vector, n = start, np.float32(len(phi))
        size = np.linalg.norm(vector)
        for _ in range(iterations):
            if not size:
                break
            vector = (phi @ (vector / size)) @ phi / n
            size = np.linalg.norm(vector)
        return self.curvature * float(size)


@dataclass(frozen=True)
class Bound:
    """constant I + weight mean mean^T: no Hessian is above it, in any row of a head."""

    constant: float
    mean: Floats | None = None  # (M + 1,)
    weight: float = 0.0

    @property
    def largest(self) -> float:
        """An upper bound of the largest eigenvalue."""
        return self.constant + (0.0 if self.mean is None else self.weight * float(self.mean @ self.mean))

    def descent(self, decay: float = 0.0, anchor: Floats | None = None) -> Descent:
        """Give steps of H^-1, a decay included."""
        share = self.weight / (self.largest + decay) if self.weight else 0.0
        rate = best_rate(self.constant + decay)
        return Descent(rate, decay=decay, anchor=anchor, mean=self.mean, share=share)


def best_rate(smoothness: float) -> float:
    """1/L, or none where the loss is flat."""
    return 1 / smoothness if smoothness else 0.0


def residual_of(z: Floats, wanted: Floats, *, softmax: bool) -> Floats:
    """link(z) - t, outputs along the first axis."""
    if not softmax:
        return z - wanted
    chances: Floats = np.exp(z - z.max(axis=0))
    chances /= chances.sum(axis=0)
    return chances - wanted


def loss_of(z: Any2d, wanted: Any2d, *, softmax: bool) -> float:
    """mean(logsumexp(z) - z_y) over the samples whose class has an output, or mean(|z - t|^2) / 2."""
    if not softmax:
        return float(np.square(z - wanted).sum(axis=0).mean() / 2)
    top = z.max(axis=0)
    logarithms = z - (top + np.log(np.exp(z - top).sum(axis=0)))
    return float(-(logarithms * wanted).sum() / wanted.sum())


@dataclass(frozen=True)
class Descent:
    """How a head goes downhill. With a decay, decay/2 |W - anchor|^2 is added to the loss."""

    rate: float
    rule: str = "gd"
    momentum: float = 0.9
    decay: float = 0.0
    anchor: Floats | None = None  # zero if None
    mean: Floats | None = None  # of the features and a column of ones
    share: float = 0.0  # of a slope's part along the mean, over |mean|^2, that is left out

    def pull(self, head: Floats) -> Floats:
        """Compute the gradient of decay/2 |W - anchor|^2."""
        return np.float32(self.decay) * (head if self.anchor is None else head - self.anchor)

    def objective(self, sight: Sight, head: Floats) -> float:
        """Compute what the steps descend."""
        if not self.decay:
            return sight.loss(head)
        return sight.loss(head) + float(np.square(self.pull(head), dtype=np.float64).sum()) / (2 * self.decay)

    def slope(self, sight: Sight, head: Floats) -> Floats:
        """Compute its gradient, the share along the mean left out."""
        return self.centred(sight.slope(head) + self.pull(head) if self.decay else sight.slope(head))

    def centred(self, slope: Floats) -> Floats:
        """Leave out a share of a slope's part along the mean, in every row."""
        if self.mean is None:
            return slope
        return slope - np.float32(self.share) * (slope @ self.mean)[:, None] * self.mean

    def steps(self, sight: Sight, head: Floats, count: int) -> Floats:
        """Take steps."""
        if self.rule == "gd" and not self.decay and sight.softmax:
            return sight.softmax_steps(head, count, self.rate, self.centred)
        move = self._moves()
        head = head.copy()
        for _ in range(count):
            head -= move(self.slope(sight, head))
        return head

    def guarded_steps(self, sight: Sight, head: Floats, count: int) -> tuple[Floats, int]:
        """Take steps that do not end above the loss they began with; 1 if they went uphill at first."""
        if self.rule == "gd":
            return self.steps(sight, head, count), 0
        before = self.objective(sight, head)
        for attempt in range(_AGAIN + 1):
            stepped = replace(self, rate=self.rate / 10**attempt).steps(sight, head, count)
            if self.objective(sight, stepped) <= before:
                return stepped, min(attempt, 1)
        return head, 1

    def _moves(self) -> Callable[[Floats], Floats]:
        """Give a fresh function from gradients, one after the other, to the moves they cause."""
        if self.rule == "gd":
            return lambda gradient: gradient * np.float32(self.rate)
        return self._momentum() if self.rule == "momentum" else self._adam()

    def _momentum(self) -> Callable[[Floats], Floats]:
        velocity: list[Floats] = []

        def move(gradient: Floats) -> Floats:
            velocity[:] = [gradient + np.float32(self.momentum) * velocity[0] if velocity else gradient]
            return velocity[0] * np.float32(self.rate)

        return move

    def _adam(self) -> Callable[[Floats], Floats]:
        first: Floats = np.zeros((), np.float32)
        second, count = first, 0

        def move(gradient: Floats) -> Floats:
            nonlocal first, second, count
            count += 1
            first = first + np.float32(0.1) * (gradient - first)
            second = second + np.float32(0.001) * (gradient * gradient - second)
            size = np.sqrt(second / np.float32(1 - 0.999**count)) + np.float32(1e-8)
            return np.asarray(first / size * np.float32(self.rate / (1 - 0.9**count)))

        return move
