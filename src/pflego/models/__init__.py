"""Backbones, by the names of settings files and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import Annotated, TypeAlias

from torch import nn

from pflego.declaration import InPython, Whole, load_object
from pflego.errors import ModelError, calling, unknown
from pflego.learning.model import Model
from pflego.learning.modes import Norm, with_group_norm
from pflego.learning.parts import part_names, resolve
from pflego.models.char_cnn import char_cnn
from pflego.models.cifar_cnn import cifar_cnn
from pflego.models.image_cnn import FEATURES, image_cnn
from pflego.models.mlp import mlp
from pflego.models.networks.efficientnet_lite import efficientnet_lite0
from pflego.models.networks.from_hf import hf_network
from pflego.models.networks.from_timm import timm_network
from pflego.models.networks.lora import with_lora
from pflego.models.networks.weights_file import load_weights
from pflego.models.networks.width import width
from pflego.models.omniglot_conv4 import omniglot_conv4
from pflego.models.watch_cnn import watch_cnn
from pflego.randomness import entropy, seeded

# From the shape of a sample to a backbone and the number of its features.
BACKBONES: dict[str, Callable[[Sequence[int]], tuple[nn.Module, int]]] = {
    "mlp": lambda shape: (mlp(prod(shape)), 200),
    "cnn": lambda shape: (image_cnn(shape), FEATURES),
    "cifar-cnn": lambda shape: (cifar_cnn(), 192),
    "omniglot-conv4": lambda shape: (omniglot_conv4(), 64),
    "watch-cnn": lambda shape: (watch_cnn(shape), 64),
    "char-cnn": lambda shape: (char_cnn(shape), 128),
}
Maker: TypeAlias = Callable[[Sequence[int], str | None, int | None], tuple[nn.Module, int]]
# From the shape of a sample, where weights are from and the size of pictures; families from a name before these.
PRETRAINED: dict[str, Maker] = {"efficientnet-lite0": efficientnet_lite0}
FAMILIES: dict[str, Callable[[str, Sequence[int], str | None, int | None], tuple[nn.Module, int]]] = {
    "timm": timm_network,
    "hf": hf_network,
}
OF_LAYERS = (
    "image_size",
    "lora",
    "lora_alpha",
    "lora_targets",
)  # options of `build` that decide what layers there are
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
    pretrained: str | None = None,
    image_size: Whole | None = None,
    frozen: str | Sequence[str] | None = None,
    trained: str | Sequence[str] | None = None,
    lora: Whole | None = None,
    lora_alpha: Whole | None = None,
    lora_targets: str | Sequence[str] | None = None,
) -> Model:
    """Build a named model for samples of a shape, its first weights a function of the seed.

    A name `module:function` is that of a function that gives a backbone, from the shape of a sample if it asks for
    one; the module is looked for in the working folder too.

    Parameters
    ----------
    name
        One of BACKBONES, efficientnet-lite0, timm:NAME, hf:NAME, or module:function.
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
    pretrained
        Weights to begin with: a file or a folder, of safetensors or of torch's tensors; or no, at random. If not given,
        those published under the name of efficientnet-lite0, timm: and hf:, and at random for all others.
    image_size
        Pixels a side to which pictures are resized for a pretrained network; if not given, what it was trained on.
    frozen
        Parts of the backbone that are not trained, named as in personal; or all.
    trained
        The parts of the backbone that are trained; all others are frozen. With lora, beside the adapters.
    lora
        Rank of LoRA's adapters: they are trained and sent, and the network beside them is frozen.
    lora_alpha
        Scale of the adapters, as alpha/rank; twice the rank if not given.
    lora_targets
        Layers that get adapters; if not given, all dense ones, or all convolutions where there are none.

    >>> build("mlp", (64,), seed=1).features
    200
    """
    if not isinstance(name, str) or (name not in {*BACKBONES, *PRETRAINED} and ":" not in name):
        raise unknown(
            "model",
            str(name),
            [*BACKBONES, *PRETRAINED, *(f"{one}:NAME" for one in FAMILIES), "module:function"],
        )
    if not isinstance(shape, Sequence) or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ModelError(f"the shape of a sample must be whole numbers above 0, not {shape!r}")
    weights = None if pretrained is None else str(pretrained)
    given = {
        "pretrained": weights,
        "image_size": image_size,
        "lora": lora,
        "lora_alpha": lora_alpha,
        "lora_targets": None if lora_targets is None else ", ".join(part_names(lora_targets, "lora_targets")),
    }
    with seeded(entropy(seed, "backbone") >> 64):
        backbone, features = _network(name, tuple(shape), weights, image_size)
        if lora is not None:
            backbone = with_lora(backbone, lora, alpha=lora_alpha, targets=lora_targets)
    if lora is None and (lora_alpha, lora_targets) != (None, None):
        raise ModelError("lora_alpha and lora_targets say how adapters are made: give lora, their rank, too")
    source = {"model": name, "model_seed": seed, **{what: value for what, value in given.items() if value}}
    if lora is not None:
        if frozen is not None:
            raise ModelError(
                "lora freezes all that is no adapter: name in trained= what is trained beside them"
            )
        adapters = [one for one, p in backbone.named_parameters() if p.requires_grad]
        beside = resolve(
            part_names(trained, "trained"), [one for one, _ in backbone.named_parameters()], "trained"
        )
        for one, parameter in backbone.named_parameters():
            parameter.requires_grad_(one in {*adapters, *beside})
        source |= {"trained": ", ".join(part_names(trained, "trained"))} if trained else {}
        return Model(backbone, features, personal=personal, norm=norm, source=source)
    return Model(
        backbone, features, personal=personal, frozen=frozen, trained=trained, norm=norm, source=source
    )


def _network(
    name: str, shape: tuple[int, ...], pretrained: str | None, image_size: int | None
) -> tuple[nn.Module, int]:
    """Make a backbone, with its first weights, and say how many features it has."""
    family, _, called = name.partition(":")
    if name in PRETRAINED:
        return PRETRAINED[name](shape, pretrained, image_size)
    if called and family in FAMILIES:
        return FAMILIES[family](called, shape, pretrained, image_size)
    if image_size is not None:
        raise ModelError(
            f"image_size: the model {name} takes pictures as they are; networks that resize them are "
            f"{', '.join([*PRETRAINED, *(f'{one}:NAME' for one in FAMILIES)])}"
        )
    backbone, features = (BACKBONES.get(name) or _from_outside(name))(shape)
    if pretrained not in (None, "no"):
        load_weights(backbone, pretrained)
    return backbone, features


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
        return backbone, width(name, backbone, shape)

    return make


def _called(function: Callable[..., object], shape: tuple[int, ...]) -> object:
    """Call a function, with a sample's shape if its first argument is called `shape` or must be given."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None or first.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return function()
    return function(shape) if first.name == "shape" or first.default is first.empty else function()


__all__ = [
    "BACKBONES",
    "FAMILIES",
    "OF_LAYERS",
    "PRETRAINED",
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
