"""Rules that bound what a few liars can do to a round, for all methods.

    Median            of every number
    TrimmedMean       of every number, without its largest and smallest values
    Krum              the contribution that is nearest to its neighbours, or the mean of several such
    GeometricMedian   the point with the smallest sum of distances to all contributions
    NormBound         the mean, of contributions that were shortened to a limit

Each gives one contribution for all, times sum_i w_i: what it would be if everybody had sent it. Clients count the
same, whatever their weights, unless weighted=True, which trusts what clients say of their sample counts. A rule costs
accuracy where honest clients differ: it cannot tell a liar from somebody with rare data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from pflego.declaration import Count, Limits, Positive, Whole, check_fields
from pflego.weights import Weights

_ITERATIONS, _ENOUGH = (
    200,
    1e-10,
)  # of the geometric median: it ends where a step is this small against the spread


class _Robust:
    """What these rules have in common: they look at contributions one by one, as rows of one matrix."""

    additive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def combine(self, contributions: Sequence[Weights], weights: Sequence[float]) -> Weights:
        """Combine contributions, which have the same names."""
        names = list(contributions[0])
        if not names:  # a method that sends nothing
            return {}
        rows = torch.stack(  # (clients, numbers)
            [torch.cat([c[name].double().flatten() for name in names]) for c in contributions]
        )
        shares = torch.tensor(weights, dtype=torch.float64, device=rows.device)
        chosen, done = self.one_of(rows, shares) * sum(weights), 0
        combined: Weights = {}
        for name, first in contributions[0].items():
            part = chosen[done : done + first.numel()].view(first.shape)
            combined[name] = part.to(torch.result_type(first, 1.0))  # of whole numbers too
            done += first.numel()
        return combined

    def one_of(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Give one contribution that stands for all."""
        raise NotImplementedError


@dataclass(frozen=True)
class Median(_Robust):
    """The coordinate-wise median: of an even number the mean of the middle two.

    Parameters
    ----------
    weighted
        Whether clients count by their weights: the value with half of the weight on either side.
    """

    weighted: bool = False

    def __str__(self) -> str:
        return "median:weighted" if self.weighted else "median"

    def one_of(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Take the median of every number."""
        if not self.weighted:
            ordered, count = rows.sort(dim=0).values, len(rows)
            return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        ordered, order = rows.sort(dim=0)
        upto = (weights / weights.sum())[order].cumsum(dim=0)  # (clients, numbers)
        below = (upto < 0.5 - _ENOUGH).sum(dim=0, keepdim=True)
        to_half = (upto < 0.5 + _ENOUGH).sum(dim=0, keepdim=True).clamp(max=len(rows) - 1)
        return ((ordered.gather(0, below) + ordered.gather(0, to_half)) / 2)[0]


@dataclass(frozen=True)
class TrimmedMean(_Robust):
    """The mean of every number without its smallest and its largest values.

    Parameters
    ----------
    share
        How much is left out at either end: so much of the clients, rounded down.
    weighted
        Whether clients count by their weights: so much of the weight is left out at either end.
    """

    share: Annotated[float, Limits(least=0, below=0.5)] = 0.1
    weighted: bool = False

    def __str__(self) -> str:
        return f"trimmed:{self.share:g}" + ("/weighted" if self.weighted else "")

    def one_of(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Average what is left."""
        ordered, order = rows.sort(dim=0)
        if not self.weighted:
            out = floor(self.share * len(rows) + _ENOUGH)
            return ordered[out : len(rows) - out].mean(dim=0)
        own = (weights / weights.sum())[order]
        upto = own.cumsum(dim=0)
        inside = upto.clamp(max=1 - self.share) - (upto - own).clamp(min=self.share)
        kept = inside.clamp(min=0)
        return (kept * ordered).sum(dim=0) / kept.sum(dim=0)


@dataclass(frozen=True)
class Krum(_Robust):
    """The contribution with the smallest sum of squared distances to its nearest others (Blanchard et al., 2017).

    It holds against `bad` liars among more than 2 bad + 2 clients; of fewer it looks at as many neighbours as it can.

    Parameters
    ----------
    bad
        How many clients may lie: a contribution is judged by its n - bad - 2 nearest.
    best
        How many of the best are averaged; more than one is multi-Krum.
    """

    bad: Count = 1
    best: Whole = 1

    def __str__(self) -> str:
        return f"krum:{self.bad}" + (f"/{self.best}" if self.best > 1 else "")

    def one_of(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Choose, or average the best."""
        count = len(rows)
        between = torch.stack([(rows - row).square().sum(dim=1) for row in rows])  # (clients, clients)
        near = max(1, min(count - self.bad - 2, count - 1)) if count > 1 else 0
        scores = between.sort(dim=1).values[:, 1 : near + 1].sum(dim=1)  # but the distance to itself
        return rows[scores.sort(stable=True).indices[: self.best]].mean(dim=0)


@dataclass(frozen=True)
class GeometricMedian(_Robust):
    """The point with the smallest sum of distances to all contributions, by Weiszfeld's iteration.

    Parameters
    ----------
    weighted
        Whether clients count by their weights.
    """

    weighted: bool = False

    def __str__(self) -> str:
        return "geometric:weighted" if self.weighted else "geometric"

    def one_of(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Iterate: a mean in which the near count for more."""
        own = weights / weights.sum() if self.weighted else torch.full_like(weights, 1 / len(rows))
        here = Median().one_of(rows, weights)  # near the honest ones, however far away a liar is
        away = (rows - here).norm(dim=1)
        spread = away.quantile(0.5) or away.max()
        for _ in range(_ITERATIONS if spread > 0 else 0):
            pull = own / (rows - here).norm(dim=1).clamp(min=_ENOUGH * float(spread))
            there = (pull / pull.sum()) @ rows
            moved = (there - here).norm()
            here = there
            if moved <= _ENOUGH * spread:
                break
        return here


@dataclass(frozen=True)
class NormBound(_Robust):
    """The weighted mean of contributions, each shortened to a Euclidean norm, all its numbers together.

    Parameters
    ----------
    limit
        The longest that a contribution may be; if not given, the median length of the round's contributions.
    """

    limit: Positive | None = None

    def __str__(self) -> str:
        return "normbound" if self.limit is None else f"normbound:{self.limit:g}"

    def one_of(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Shorten, then average."""
        lengths = rows.norm(dim=1)
        limit = lengths.quantile(0.5) if self.limit is None else torch.as_tensor(self.limit).to(lengths)
        factors = (limit / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1)
        shortened: Tensor = (weights / weights.sum() * factors) @ rows
        return shortened
