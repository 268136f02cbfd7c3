"""What several backbones have in common."""

from __future__ import annotations

from torch import Tensor, nn


class ImagesFirst(nn.Module):
    """From images as they are stored, (n, h, w) or (n, h, w, colours), to what convolutions take, (n, c, h, w).

    The permuted view is already in the layout in which convolutions are fastest (channels last).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Put colours before height and width."""
        return (x if x.dim() == 4 else x[..., None]).permute(0, 3, 1, 2)
