"""A small network for windows of time series: three convolutions along time, M = 64."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pflego.errors import ModelError

_SHORTEST = 8  # moments: what three poolings leave of them is one


class ChannelsFirst(nn.Module):
    """From windows as they are stored, (n, moments, channels), to what convolutions take, (n, channels, moments)."""

    def forward(self, x: Tensor) -> Tensor:
        """Put channels before moments."""
        return x.transpose(1, 2)


def watch_cnn(shape: Sequence[int]) -> nn.Module:
    """Build three times a convolution over 5 moments, of 32, 64 and 64 filters, max pooling by 2 and ReLU; their mean.

    The mean over time makes features of what happens in a window, wherever in it that is.
    """
    if len(shape) != 2 or shape[0] < _SHORTEST:
        raise ModelError(
            f"the model watch-cnn takes windows of at least {_SHORTEST} moments, (moments, channels), not samples of "
            f"shape {tuple(shape)}"
        )
    layers: list[nn.Module] = [ChannelsFirst()]
    for before, after in ((shape[1], 32), (32, 64), (64, 64)):
        layers += [nn.Conv1d(before, after, 5, padding=2), nn.MaxPool1d(2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())
