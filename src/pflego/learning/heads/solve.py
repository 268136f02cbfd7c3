"""A linear head at the minimum of its loss, by second derivatives and in float64.

    W* = argmin_W l(W) + decay/2 |W - A|^2,    decay > 0, so there is exactly one

Half the squared error is one Cholesky factorisation: of a matrix of the features' size, or of the samples' where these
are fewer. The softmax is Newton's method; each of its systems is solved by conjugate gradients, whose products with
the Hessian cost as much as a gradient step, so no matrix of the size of a head squared is ever held. Weights of samples
stand in the rows of Phi: all of them in one of a product's two factors, or their root in both.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pflego.errors import ModelError
from pflego.learning.heads.base import HEAD
from pflego.learning.heads.linear import LinearHead
from pflego.learning.problem import Problem
from pflego.learning.task import Regression, Task
from pflego.learning.weighted import labels_in, plain, weights_in
from pflego.weights import Weights

_RESIDUAL = 1e-9  # of the gradient's norm, as a share of decay: then |W - W*| is no larger than this
_NEWTON = 100  # steps at most; a dozen are usual
_HALVINGS = 50


def solve_head(problem: Problem, features: Tensor, decay: float, anchor: Weights | None) -> Weights:
    """Give the head that minimises a client's loss on features, (samples, M), and decay/2 |W - anchor|^2."""
    if not isinstance(problem.head, LinearHead):
        raise ModelError("heads are solved for where they are linear: give this one another head_optimizer")
    targets = problem.targets.double()
    labels, each = labels_in(problem.task, targets), weights_in(problem.task, targets)  # (n, K), (n,)
    phi = torch.cat([features.double(), features.new_ones(len(features), 1).double()], dim=1)  # (n, M + 1)
    shape = (labels.shape[1], phi.shape[1])
    at = anchor[HEAD].double() if anchor else phi.new_zeros(shape)  # (K, M + 1)
    if isinstance(plain(problem.task), Regression):
        root = None if each is None else each.sqrt()
        head = at + _least_squares(_times(phi, root), _times(labels - phi @ at.T, root), decay)
    else:
        head = _newton(phi, targets, at, decay, problem.task)
    return {HEAD: head.to(problem.model.weight_dtype)}


def _least_squares(phi: Tensor, rest: Tensor, decay: float) -> Tensor:
    """argmin_V |phi V^T - rest|^2 / 2n + decay/2 |V|^2."""
    n, width = phi.shape
    if n < width:
        gram = phi @ phi.T / n + decay * torch.eye(n).to(phi)  # (n, n)
        return _cholesky_solve(gram, rest / n).T @ phi
    gram = phi.T @ phi / n + decay * torch.eye(width).to(phi)  # (M + 1, M + 1)
    return _cholesky_solve(gram, phi.T @ rest / n).T


def _times(rows: Tensor, each: Tensor | None) -> Tensor:
    """Multiply every row by its own number, if there are any."""
    return rows if each is None else rows * each[:, None]


def _cholesky_solve(matrix: Tensor, right: Tensor) -> Tensor:
    return torch.cholesky_solve(right, torch.linalg.cholesky(matrix))


def _newton(phi: Tensor, targets: Tensor, anchor: Tensor, decay: float, task: Task) -> Tensor:
    """Minimise the softmax's loss from the anchor on."""
    head, n = anchor, len(phi)
    labels, softmax = labels_in(task, targets), plain(task)
    counted = _times(phi, weights_in(task, targets))  # (n, M + 1)

    def objective(head: Tensor) -> float:
        return float(task.loss(phi @ head.T, targets) + decay / 2 * (head - anchor).square().sum())

    now = objective(head)
    for _ in range(_NEWTON):
        residual = softmax.residual(phi @ head.T, labels)  # (n, K)
        gradient = residual.T @ counted / n + decay * (head - anchor)  # (K, M + 1)
        size = float(gradient.norm())
        if not size > _RESIDUAL * decay:
            break
        chances = residual + labels  # (n, K): softmax(z)

        def curvature(move: Tensor, chances: Tensor = chances) -> Tensor:
            along = chances * (phi @ move.T)  # (n, K)
            bent = along - chances * along.sum(dim=1, keepdim=True)
            return bent.T @ counted / n + decay * move

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
    apply: Callable[[Tensor], Tensor], right: Tensor, *, share: float, most: int = 500
) -> Tensor:
    """Solve apply(x) = right, until what is left is no more than a share of it."""
    x, rest = torch.zeros_like(right), right
    direction, square = rest, float(rest.square().sum())
    enough = share**2 * square
    for _ in range(most):
        if square <= enough:
            break
        along = apply(direction)
        length = square / float((direction * along).sum())
        x, rest = x + length * direction, rest - length * along
        before, square = square, float(rest.square().sum())
        direction = rest + square / before * direction
    return x
