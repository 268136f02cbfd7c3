"""Networks of transformers, without their heads: hf:FOLDER, hf:NAME on the hub, or hf:KIND at random.

Features are the class token where a network for pictures has one, else the mean over positions, for text without those
that only fill up.
"""

from __future__ import annotations

import json
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pflego.codec import some
from pflego.errors import MissingExtraError, ModelError, calling
from pflego.models.networks.chain import Named, as_chain
from pflego.models.networks.pictures import IMAGENET, Pictures, check_pictures
from pflego.models.networks.weights_file import read_weights
from pflego.models.networks.width import width

_LAYERS = ("encoder.layer", "encoder.layers", "layers", "layer", "encoder.stages", "blocks")
_LAST = ("layernorm", "layer_norm", "norm", "final_layer_norm")
_OPENING = ("embeddings", "embedder")


def hf_network(
    name: str, shape: Sequence[int], pretrained: str | None, image_size: int | None
) -> tuple[nn.Module, int]:
    """Make a network with its published weights, those of a file or a folder, or at random."""
    network, config = _network(name, pretrained)
    network.eval()
    spoken = f"hf:{name}"
    if getattr(network, "main_input_name", "input_ids") != "pixel_values":
        if image_size is not None:
            raise ModelError(f"image_size: the model {spoken} takes tokens, not pictures")
        if len(shape) != 1:
            raise ModelError(
                f"the model {spoken} takes tokens, (length,), not samples of shape {tuple(shape)}"
            )
        text = _Text(network, getattr(config, "pad_token_id", None)).eval()
        return text, width(spoken, text, shape, tokens=True)
    check_pictures(spoken, shape)
    found = image_size or getattr(config, "image_size", None) or 224
    height, side = (found, found) if isinstance(found, int) else tuple(found)
    mean, deviation = _scale(Path(name))
    pooled = _Pooled(class_token=any("cls_token" in own for own, _ in network.named_parameters()))
    with calling(f"{spoken} cannot take pictures of {height} x {side} pixels", ModelError):
        parts = as_chain(
            _Image(network, pooled), _candidates(network, pooled), torch.rand(2, 3, height, side)
        )
    pictures = Pictures(height, side, mean, deviation)
    backbone = nn.Sequential(OrderedDict([("pictures", pictures), *parts])).eval()
    return backbone, width(spoken, backbone, shape, tokens=False)


def _network(name: str, pretrained: str | None) -> tuple[nn.Module, Any]:
    try:
        from transformers import CONFIG_MAPPING, AutoConfig, AutoModel
    except ModuleNotFoundError as error:
        raise MissingExtraError("for models of transformers: pip install 'pflego[hf]'") from error
    auto: Any = AutoModel
    local = Path(name).is_dir()
    at_random = pretrained == "no"
    with calling(f"hf:{name} cannot be made", ModelError):
        if at_random and not local and name in CONFIG_MAPPING:
            config = CONFIG_MAPPING[name]()
        else:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=local)
        if at_random:
            network = auto.from_config(config, trust_remote_code=False)
        elif pretrained is None and not local:
            network = _with_weights(auto, name, name)
        else:
            network = _from_files(auto, config, name if pretrained is None else pretrained)
    if getattr(network, "pooler", None) is not None and any(True for _ in network.pooler.parameters()):
        network.pooler = None  # often not among the published weights
    return network, config


def _from_files(kind: Any, config: Any, given: str) -> nn.Module:
    """Load weights that were read as tensors alone, and let transformers give them their present names."""
    tensors = {
        name: tensor.clone(memory_format=torch.contiguous_format)  # as files of safetensors have to be
        for name, tensor in read_weights(given).items()
    }
    with tempfile.TemporaryDirectory(prefix="pflego-hf-") as folder:
        config.save_pretrained(folder)
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        return _with_weights(kind, folder, given)


def _with_weights(kind: Any, place: str, spoken: str) -> nn.Module:
    """Load a network with all of its weights, but for a pooler's."""
    network: nn.Module
    network, loaded = kind.from_pretrained(
        place, use_safetensors=True, trust_remote_code=False, output_loading_info=True
    )
    missing = sorted(name for name in loaded["missing_keys"] if "pooler" not in name)
    if missing or loaded.get("mismatched_keys"):
        wrong = missing or [str(one[0]) for one in loaded["mismatched_keys"]]
        raise ModelError(
            f"pretrained: {spoken} has no fitting weights for {some(wrong)}: it is of another network"
        )
    return network


def _scale(folder: Path) -> tuple[Sequence[float], Sequence[float]]:
    """Read with which mean and deviation a folder's network wants its pictures; ImageNet's if it does not say."""
    file = folder / "preprocessor_config.json"
    try:
        said = json.loads(file.read_text())
        return tuple(map(float, said["image_mean"])), tuple(map(float, said["image_std"]))
    except (OSError, ValueError, KeyError, TypeError):
        return IMAGENET


def _candidates(network: nn.Module, pooled: nn.Module) -> Iterator[list[Named]]:
    """Give sequences that may be what a network for pictures does: embeddings, layers, a norm."""
    parts = dict(network.named_modules())
    for opening in [one for one in _OPENING if one in parts]:
        for layers in [one for one in _LAYERS if isinstance(parts.get(one), nn.ModuleList)]:
            middle: list[Named] = [
                (opening, parts[opening]),
                ("layers", nn.Sequential(*parts[layers].children())),
            ]
            yield from ([*middle, (last, parts[last]), ("pool", pooled)] for last in _LAST if last in parts)
            yield [*middle, ("pool", pooled)]


class _Pooled(nn.Module):
    """From tokens, (n, tokens, width), or maps, (n, width, h, w), to features."""

    def __init__(self, *, class_token: bool) -> None:
        super().__init__()
        self.class_token = class_token

    def forward(self, x: Tensor) -> Tensor:
        """Give the class token, or the mean over positions."""
        if x.dim() == 4:
            return x.mean(dim=(2, 3))
        return x[:, 0] if self.class_token else x.mean(dim=1)


class _Image(nn.Module):
    """A whole network for pictures, and what its features are."""

    def __init__(self, network: nn.Module, pooled: nn.Module) -> None:
        super().__init__()
        self.network, self.pool = network, pooled

    def forward(self, x: Tensor) -> Tensor:
        """Pass pictures."""
        features: Tensor = self.pool(self.network(pixel_values=x).last_hidden_state)
        return features


class _Text(nn.Module):
    """A whole network for tokens, and the mean over those that are no filling."""

    def __init__(self, network: nn.Module, filling: int | None) -> None:
        super().__init__()
        self.network, self.filling = network, filling

    def forward(self, x: Tensor) -> Tensor:
        """Pass tokens, (n, length)."""
        real = torch.ones_like(x) if self.filling is None else (x != self.filling).to(x.dtype)
        real = torch.where(
            real.sum(dim=1, keepdim=True) > 0, real, torch.ones_like(real)
        )  # never nothing at all
        hidden: Tensor = self.network(input_ids=x, attention_mask=real).last_hidden_state
        weight = real.to(hidden.dtype)[..., None]
        return (hidden * weight).sum(dim=1) / weight.sum(dim=1)
