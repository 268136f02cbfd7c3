"""The paper's network for CIFAR-10: two convolutions, two dense layers, M = 192."""

from __future__ import annotations

from torch import Tensor, nn


class ImagesFirst(nn.Module):
    """From (samples, height, width, colours), as images are stored, to what convolutions take.

    The permuted view is already in the layout in which convolutions are fastest (channels last).
    """

    def forward(self, x: Tensor) -> Tensor:
        """(n, h, w, c) to (n, c, h, w)."""
        return x.permute(0, 3, 1, 2)


def cifar_cnn() -> nn.Module:
    """Twice a 5x5 convolution of 64 filters and 3x3 max pooling with stride 2; then 384 and 192 units."""
    return nn.Sequential(
        ImagesFirst(),
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
    )
