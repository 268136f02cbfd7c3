"""How many features a backbone has, and whether it takes samples of a shape at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pflego.errors import ModelError, calling


def width(name: str, backbone: nn.Module, shape: Sequence[int], *, tokens: bool | None = None) -> int:
    """Count the features of a backbone on samples of zeros, or say that it cannot take them.

    tokens: whether inputs are whole numbers to be looked up; if not said, where there is an embedding.
    """
    first = next(backbone.parameters(), torch.empty(0))
    if tokens is None:
        tokens = any(isinstance(module, nn.Embedding) for module in backbone.modules())
    training = [module for module in backbone.modules() if module.training]
    backbone.eval()  # so that a try moves no statistics
    with torch.no_grad(), calling(f"{name} cannot take samples of shape {tuple(shape)}", ModelError):
        features = backbone(torch.zeros(2, *shape, dtype=torch.long if tokens else first.dtype))
    for module in training:
        module.training = True
    if not isinstance(features, Tensor) or features.dim() != 2:
        found = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
        raise ModelError(f"{name} must map a batch to (samples, features), not to {found}")
    return features.shape[1]
