"""Backbones, by the names of settings files and the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import nn

from pflego.errors import unknown
from pflego.model import Model
from pflego.models.cifar_cnn import cifar_cnn
from pflego.models.mlp import mlp
from pflego.models.omniglot_conv4 import omniglot_conv4
from pflego.randomness import entropy

# From the shape of a sample to a backbone and the number of its features.
BACKBONES: dict[str, Callable[[Sequence[int]], tuple[nn.Module, int]]] = {
    "mlp": lambda shape: (mlp(prod(shape)), 200),
    "cifar-cnn": lambda shape: (cifar_cnn(), 192),
    "omniglot-conv4": lambda shape: (omniglot_conv4(), 64),
}


def build(name: str, shape: Sequence[int], *, seed: int = 0) -> Model:
    """Build a named model for samples of a shape, its first weights a function of the seed.

    >>> build("mlp", (64,), seed=1).features
    200
    """
    if name not in BACKBONES:
        raise unknown("model", str(name), BACKBONES)
    with torch.random.fork_rng():
        torch.manual_seed(entropy(seed, "backbone") >> 64)
        backbone, features = BACKBONES[name](shape)
    return Model(backbone, features, source={"model": name, "model_seed": seed})


__all__ = ["BACKBONES", "build", "cifar_cnn", "mlp", "omniglot_conv4"]
