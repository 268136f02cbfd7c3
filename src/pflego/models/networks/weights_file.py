"""Weights from a file or a folder: tensors by name, and nothing that could be run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pflego.codec import some
from pflego.errors import ModelError, path_of

_KINDS = (".safetensors", ".pth", ".pt", ".bin")
_INSIDE = ("state_dict", "model", "model_state_dict")  # where a training script may have put them


def read_weights(given: str | Path) -> dict[str, Tensor]:
    """Read all tensors of a file, or of the files of a folder, safetensors first."""
    path = path_of("pretrained", given)
    if path.is_dir():
        files = next((own for kind in _KINDS if (own := sorted(path.glob(f"*{kind}")))), [])
    else:
        files = [path] if path.is_file() else []
    if not files:
        raise ModelError(
            f"pretrained: there are no weights at {path}: name a file or a folder with one of {', '.join(_KINDS)}, or "
            "say no, for weights at random"
        )
    found: dict[str, Tensor] = {}
    for file in files:
        found |= _read(file)
    return found


def load_weights(
    backbone: nn.Module, given: str | Path, *, called: Callable[[str], str | None] = lambda name: name
) -> None:
    """Load weights into a backbone, all of its parameters and buffers.

    called: gives a weight's name in the backbone, or None for one that it has no place for, as of a head.
    """
    read = read_weights(given)
    named = {place: tensor for name, tensor in read.items() if (place := called(name)) is not None}
    own = backbone.state_dict()
    missing = [name for name in own if name not in named and not name.endswith("num_batches_tracked")]
    if missing:
        raise ModelError(
            f"pretrained: {given} has no weights for {some(missing)}; it has {some(read)}: it is of another network"
        )
    for name, tensor in own.items():
        if name in named and named[name].shape != tensor.shape:
            raise ModelError(
                f"pretrained: in {given}, {name} is of shape {tuple(named[name].shape)}, not "
                f"{tuple(tensor.shape)}: it is of another network"
            )
    backbone.load_state_dict({name: named.get(name, tensor) for name, tensor in own.items()})


def _read(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of formats that it may not know: it says so when it does not
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch says to bytes that it did not write: assertions, keys, places
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"pretrained: {file} cannot be read as weights, which are tensors by name and no code: {reason}"
        ) from error
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(one, Tensor) for one in content.values()):
        raise ModelError(f"pretrained: {file} holds no tensors by name, but a {type(content).__name__}")
    return {str(name): tensor for name, tensor in content.items()}
