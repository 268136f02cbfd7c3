"""The paper's network for Omniglot: four convolutions, M = 64."""

from __future__ import annotations

from torch import nn

from pflego.models.layers import ImagesFirst


def omniglot_conv4() -> nn.Module:
    """Build four times a 3x3 convolution of 64 filters and 2x2 max pooling: 28x28 pixels become 1x1."""
    layers: list[nn.Module] = [ImagesFirst()]
    for channels in (1, 64, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())
