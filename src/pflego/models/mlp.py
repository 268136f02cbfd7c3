"""The paper's network for MNIST, Fashion-MNIST and EMNIST: one layer of 200 units."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, hidden: int = 200) -> nn.Module:
    """Flatten, one linear layer, ReLU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU())
