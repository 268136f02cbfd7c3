"""From pictures as they are stored to what a network was trained on: its colours, its size, its scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflego.errors import ModelError

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation of its colours


class Pictures(nn.Module):
    """From (n, h, w) or (n, h, w, colours), from 0 to 1, to (n, 3, height, width), normalised.

    Grey becomes the same in all three colours. Pictures of another size are resized, with antialiasing where they get
    smaller.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        height: int,
        width: int,
        mean: Sequence[float] = IMAGENET[0],
        deviation: Sequence[float] = IMAGENET[1],
    ) -> None:
        super().__init__()
        self.size = (height, width)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(1, 3, 1, 1))

    def extra_repr(self) -> str:
        """Say what size they get."""
        return f"size={self.size}"

    def forward(self, x: Tensor) -> Tensor:
        """Put colours first, make three of them, resize, normalise."""
        x = (x if x.dim() == 4 else x[..., None]).permute(0, 3, 1, 2)
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        if tuple(x.shape[2:]) != self.size:
            smaller = x.shape[2] > self.size[0] or x.shape[3] > self.size[1]
            x = functional.interpolate(x, self.size, mode="bilinear", antialias=smaller)
        x = (x - self.mean) / self.deviation
        return x.contiguous(memory_format=torch.channels_last)


def check_pictures(name: str, shape: Sequence[int]) -> None:
    """Refuse samples that are no pictures in grey or in three colours."""
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise ModelError(
            f"the model {name} takes pictures in grey or in three colours, (h, w) or (h, w, 1 or 3), not samples of "
            f"shape {tuple(shape)}"
        )
