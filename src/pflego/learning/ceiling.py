"""The most that one model can get right where outputs are numbered anew on every client (labels="local").

Client i calls its classes 0, 1, ... in ascending order, so that a class c has another rank k with another client. A
model that everybody uses as it is sees a sample, not whose it is: at best it knows the class and answers with the rank
that the class has most often. With n_ck test samples of class c where it has rank k,

    ceiling = sum_c max_k n_ck / sum_ck n_ck.

Where every client holds 2 of 10 classes, drawn evenly, that is 77.8 %; with 5 of 10 it is 61.3 %. What is above it was
adapted to the client.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def ceiling(holdings: Iterable[tuple[Tensor, Tensor]]) -> float | None:
    """Compute it from every client's classes, ascending, and test labels; None without test samples.

    >>> ceiling([(torch.tensor([3, 5]), torch.tensor([3, 5, 5])), (torch.tensor([5, 8]), torch.tensor([5]))])
    0.75
    """
    counts: dict[int, Tensor] = {}
    samples = 0
    for classes, labels in holdings:
        samples += len(labels)
        for rank, name in enumerate(classes.tolist()):
            ranks = counts.setdefault(name, torch.zeros(0, dtype=torch.long))
            if len(ranks) <= rank:
                ranks = torch.cat([ranks, ranks.new_zeros(rank + 1 - len(ranks))])
            ranks[rank] += (labels == name).sum()
            counts[name] = ranks
    return sum(int(ranks.max()) for ranks in counts.values()) / samples if samples else None
