"""Sixty clients, all but one of them small, and a backbone that one of them can break."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import pflego

CLIENTS = 60


class Exponential(nn.Module):
    """Overflows at 710."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)


def crowd(*, broken: int | None = None) -> pflego.Federation:
    """Make clients of 5 to 34 samples and a first one of 300; inputs of a broken one are far too large."""
    rng = np.random.default_rng(0)
    clients = []
    for i in range(CLIENTS):
        n = 5 + i % 30 if i else 300
        x = rng.normal(size=(n, 6))
        if i == broken:
            x[0] = 1e5
        classes = np.sort(rng.choice(5, 2 + i % 3, replace=False))
        clients.append(pflego.Client(i, x, classes[np.arange(n) % len(classes)], x[:2], classes[:2]))
    return pflego.Federation(clients)
