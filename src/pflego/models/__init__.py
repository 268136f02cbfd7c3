"""Backbones, by the names of settings files and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import Annotated

import torch
from torch import Tensor, nn

from pflego.declaration import InPython, load_object
from pflego.errors import ModelError, calling, unknown
from pflego.learning.model import Model
from pflego.learning.modes import Norm, with_group_norm
from pflego.models.char_cnn import char_cnn
from pflego.models.cifar_cnn import cifar_cnn
from pflego.models.image_cnn import FEATURES, image_cnn
from pflego.models.mlp import mlp
from pflego.models.omniglot_conv4 import omniglot_conv4
from pflego.models.watch_cnn import watch_cnn
from pflego.randomness import entropy

# From the shape of a sample to a backbone and the number of its features.
BACKBONES: dict[str, Callable[[Sequence[int]], tuple[nn.Module, int]]] = {
    "mlp": lambda shape: (mlp(prod(shape)), 200),
    "cnn": lambda shape: (image_cnn(shape), FEATURES),
    "cifar-cnn": lambda shape: (cifar_cnn(), 192),
    "omniglot-conv4": lambda shape: (omniglot_conv4(), 64),
    "watch-cnn": lambda shape: (watch_cnn(shape), 64),
    "char-cnn": lambda shape: (char_cnn(shape), 128),
}
_USUAL = {
    "cifar10": "cifar-cnn",
    "omniglot": "omniglot-conv4",
    "watch": "watch-cnn",
    "shakespeare": "char-cnn",
}


def usual(data: str) -> str:
    """Name the backbone for a data set, the paper's where it has one; the MLP for any other.

    >>> usual("cifar10"), usual("mnist")
    ('cifar-cnn', 'mlp')
    """
    return _USUAL.get(data, "mlp")


def build(
    name: str,
    shape: Sequence[int],
    *,
    seed: Annotated[int, InPython] = 0,
    personal: str | Sequence[str] | None = None,
    norm: Norm | None = None,
) -> Model:
    """Build a named model for samples of a shape, its first weights a function of the seed.

    A name `module:function` is that of a function that gives a backbone, from the shape of a sample if it asks for
    one; the module is looked for in the working folder too.

    Parameters
    ----------
    name
        One of BACKBONES, or module:function.
    shape
        That of a sample.
    seed
        Decides the first weights.
    personal
        Parts of the backbone that stay with each client, beside its head: names of parameters or modules, or the
        beginnings of dotted names. "head" keeps a head at home that a method would share.
    norm
        What becomes of batch norm: statistics are frozen, averaged with the weights, or personal, as its weights are
        then; or group, GroupNorm in its place. If not given, frozen, for layers in evaluation mode.

    >>> build("mlp", (64,), seed=1).features
    200
    """
    if not isinstance(name, str) or (name not in BACKBONES and ":" not in name):
        raise unknown("model", str(name), [*BACKBONES, "module:function"])
    if not isinstance(shape, Sequence) or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ModelError(f"the shape of a sample must be whole numbers above 0, not {shape!r}")
    make = BACKBONES.get(name) or _from_outside(name)
    with torch.random.fork_rng():
        torch.manual_seed(entropy(seed, "backbone") >> 64)
        backbone, features = make(shape)
    source = {"model": name, "model_seed": seed}
    return Model(backbone, features, personal=personal, norm=norm, source=source)


def _from_outside(name: str) -> Callable[[Sequence[int]], tuple[nn.Module, int]]:
    """Import a backbone somebody else has written, and count its features on samples of zeros."""
    function = load_object(name, "model")
    if not callable(function):
        raise ModelError(f"model {name!r} is no function that gives a backbone")

    def make(shape: Sequence[int]) -> tuple[nn.Module, int]:
        with calling(f"{name} failed", ModelError):
            backbone = _called(function, tuple(shape))
        if not isinstance(backbone, nn.Module):
            raise ModelError(f"{name} must give a torch.nn.Module, not {type(backbone).__name__}")
        first = next(backbone.parameters(), torch.empty(0))
        training = [module for module in backbone.modules() if module.training]
        backbone.eval()  # so that a try moves no statistics
        with torch.no_grad(), calling(f"{name} cannot take samples of shape {tuple(shape)}", ModelError):
            tokens = any(isinstance(module, nn.Embedding) for module in backbone.modules())
            features = backbone(torch.zeros(2, *shape, dtype=torch.long if tokens else first.dtype))
        for module in training:
            module.training = True
        if not isinstance(features, Tensor) or features.dim() != 2:
            found = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
            raise ModelError(f"{name} must map a batch to (samples, features), not to {found}")
        return backbone, features.shape[1]

    return make


def _called(function: Callable[..., object], shape: tuple[int, ...]) -> object:
    """Call a function, with a sample's shape if its first argument is called `shape` or must be given."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None or first.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return function()
    return function(shape) if first.name == "shape" or first.default is first.empty else function()


__all__ = [
    "BACKBONES",
    "build",
    "char_cnn",
    "cifar_cnn",
    "image_cnn",
    "mlp",
    "omniglot_conv4",
    "usual",
    "watch_cnn",
    "with_group_norm",
]
