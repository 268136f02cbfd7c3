"""A small convolutional network for images of any size: two convolutions, one dense layer, M = 512."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from pflego.errors import ModelError
from pflego.models.layers import ImagesFirst

FEATURES = 512
_SMALLEST = 16  # pixels: what is left of them after two convolutions and two poolings is a pixel


def image_cnn(shape: Sequence[int]) -> nn.Module:
    """Build twice a 5x5 convolution, of 32 and 64 filters, ReLU and 2x2 max pooling; then 512 units.

    Pooling stands before ReLU: the result is the same, for a quarter of the comparisons.
    """
    if len(shape) not in (2, 3) or min(shape[:2]) < _SMALLEST:
        raise ModelError(
            f"the model cnn takes images of at least {_SMALLEST} x {_SMALLEST} pixels, (h, w) or (h, w, colours), not "
            f"samples of shape {tuple(shape)}: take the model mlp"
        )
    height, width = (((size - 4) // 2 - 4) // 2 for size in shape[:2])
    return nn.Sequential(
        ImagesFirst(),
        nn.Conv2d(shape[2] if len(shape) == 3 else 1, 32, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * height * width, FEATURES),
        nn.ReLU(),
    )
