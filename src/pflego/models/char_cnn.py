"""A small network for text: an embedding, two convolutions along the characters, one dense layer, M = 128.

Its inputs are whole numbers, tokens from 0 to 127. They are int32 or int64, since bytes stand for images.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pflego.errors import ModelError

_TOKENS, _WIDTH = 128, 16
_SHORTEST = 13  # characters: what two convolutions leave of them is one


class EmbeddedFirst(nn.Module):
    """From tokens, (n, characters), to what convolutions take, (n, width, characters)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(_TOKENS, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Look tokens up, and put the embedding before the characters."""
        embedded: Tensor = self.table(x)
        return embedded.transpose(1, 2)


def char_cnn(shape: Sequence[int]) -> nn.Module:
    """Build an embedding of 16 numbers, twice a convolution over 5 characters, 64 filters, stride 2, ReLU; 128 units.

    All characters come before the one to be predicted, so nothing need be masked.
    """
    if len(shape) != 1 or shape[0] < _SHORTEST:
        raise ModelError(
            f"the model char-cnn takes at least {_SHORTEST} characters, not samples of shape {tuple(shape)}"
        )
    layers: list[nn.Module] = [EmbeddedFirst()]
    length = shape[0]
    for before in (_WIDTH, 64):
        odd = (length - 5) % 2  # a stride of 2 would miss the last character, which says most
        layers += [nn.ConstantPad1d((odd, 0), 0.0), nn.Conv1d(before, 64, 5, stride=2), nn.ReLU()]
        length = (length + odd - 5) // 2 + 1
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * length, 128), nn.ReLU())
