"""The paper's network for CIFAR-10: two convolutions, two dense layers, M = 192."""

from __future__ import annotations

from torch import nn

from pflego.models.layers import ImagesFirst


def cifar_cnn() -> nn.Module:
    """Build twice a 5x5 convolution of 64 filters and 3x3 max pooling with stride 2; then 384 and 192 units.

    Pooling stands before ReLU: the result is the same, for a quarter of the comparisons.
    """
    return nn.Sequential(
        ImagesFirst(),
        nn.Conv2d(3, 64, 5, padding=2),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
    )
