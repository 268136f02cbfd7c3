"""The convex combination of least square: a small quadratic programme, solved to the end.

    minimise a' P a  over  a >= 0, sum of a = 1,      P symmetric and positive semidefinite

Where P is definite the solution is b / sum of b for the one b >= 0 that minimises b' P b / 2 - sum of b: both have the
conditions P b >= 1, with equality where b > 0. That b is found by the active set method of Lawson and Hanson (1974).
"""

from __future__ import annotations

import torch
from torch import Tensor

_RIDGE = 1e-12  # of the mean of the diagonal, added to it: solutions that are as good become one
_SLACK = 1e-9  # below which a condition counts as kept


def best_combination(matrix: Tensor) -> Tensor:
    """Give a, (n,), of a matrix P, (n, n).

    >>> best_combination(torch.diag(torch.tensor([1.0, 3.0])))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    n = len(matrix)
    scale = float(matrix.diagonal().mean())
    if not scale > 0:  # every combination is as good
        return torch.full((n,), 1 / n, dtype=torch.float64)
    p = matrix.double() / scale + _RIDGE * torch.eye(n, dtype=torch.float64)
    solution = torch.zeros(n, dtype=torch.float64)
    free = torch.zeros(n, dtype=torch.bool)
    for _ in range(10 * n):  # it ends after n or a few more
        slope = (1 - p @ solution).masked_fill(free, -torch.inf)
        if float(slope.max()) <= _SLACK:
            break
        free[slope.argmax()] = True
        solution, free = _inside(p, solution, free)
    return solution / solution.sum()


def _inside(p: Tensor, solution: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Go to the best point of the free coordinates; those that would become negative are freed no more."""
    while True:
        best = torch.zeros_like(solution)
        best[free] = torch.linalg.solve(p[free][:, free], torch.ones(int(free.sum()), dtype=p.dtype))
        negative = free & (best <= 0)
        if not negative.any():
            return best, free
        ratios = solution[negative] / (solution[negative] - best[negative])
        solution = solution + ratios.min() * (best - solution)
        free = free & (solution > _SLACK * solution.max())
        solution = solution.where(free, 0)
