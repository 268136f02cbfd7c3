"""A linear head at the minimum of its loss, by second derivatives and in float64.

    W* = argmin_W l(W) + decay/2 |W - A|^2,    decay > 0, so there is exactly one

Half the squared error is one linear system: of the features' size, or of the samples' where these are fewer. The
softmax is Newton's method, its systems solved by conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pflego_light.arrays import Floats
from pflego_light.head import Sight, loss_of

Doubles = npt.NDArray[np.float64]
_RESIDUAL = 1e-9  # of the gradient's norm, as a share of decay: then |W - W*| is no larger than this
_NEWTON = 100
_HALVINGS = 50


def solve_head(sight: Sight, decay: float, anchor: Floats | None) -> Floats:
    """Give the head, (K, M + 1), that minimises the loss and decay/2 |W - anchor|^2."""
    phi, targets = sight.phi.astype(np.float64), sight.targets.astype(np.float64)
    at = np.zeros((targets.shape[1], phi.shape[1])) if anchor is None else anchor.astype(np.float64)
    if sight.softmax:
        return _newton(phi, targets, at, decay).astype(np.float32)
    return (at + _least_squares(phi, targets - phi @ at.T, decay)).astype(np.float32)


def _least_squares(phi: Doubles, rest: Doubles, decay: float) -> Doubles:
    """argmin_V |phi V^T - rest|^2 / 2n + decay/2 |V|^2."""
    n, width = phi.shape
    if n < width:
        return np.asarray(np.linalg.solve(phi @ phi.T / n + decay * np.eye(n), rest / n).T @ phi)
    return np.asarray(np.linalg.solve(phi.T @ phi / n + decay * np.eye(width), phi.T @ rest / n).T)


def _newton(phi: Doubles, targets: Doubles, anchor: Doubles, decay: float) -> Doubles:
    head, n = anchor, len(phi)

    def objective(head: Doubles) -> float:
        return loss_of(head @ phi.T, targets.T, softmax=True) + decay / 2 * float(
            np.square(head - anchor).sum()
        )

    now = objective(head)
    for _ in range(_NEWTON):
        z = phi @ head.T  # (n, K)
        chances = np.exp(z - z.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        gradient = (chances - targets).T @ phi / n + decay * (head - anchor)  # (K, M + 1)
        size = float(np.linalg.norm(gradient))
        if not size > _RESIDUAL * decay:
            break

        def curvature(move: Doubles, chances: Doubles = chances) -> Doubles:
            along = chances * (phi @ move.T)
            bent = along - chances * along.sum(axis=1, keepdims=True)
            return np.asarray(bent.T @ phi / n + decay * move)

        move = _conjugate_gradients(curvature, gradient, share=min(0.1, size**0.5))
        rate, gain = 1.0, float((move * gradient).sum())
        for _ in range(_HALVINGS):
            after = objective(head - rate * move)
            if after <= now - 1e-4 * rate * gain:
                break
            rate /= 2
        else:  # the loss is flat to its last digit: the last full step is as good as any
            return head - move
        head, now = head - rate * move, after
    return head


def _conjugate_gradients(
    apply: Callable[[Doubles], Doubles], right: Doubles, *, share: float, most: int = 500
) -> Doubles:
    """Solve apply(x) = right, until what is left is no more than a share of it."""
    x, rest = np.zeros_like(right), right
    direction, square = rest, float(np.square(rest).sum())
    enough = share**2 * square
    for _ in range(most):
        if square <= enough:
            break
        along = apply(direction)
        length = square / float((direction * along).sum())
        x, rest = x + length * direction, rest - length * along
        before, square = square, float(np.square(rest).sum())
        direction = rest + square / before * direction
    return x
