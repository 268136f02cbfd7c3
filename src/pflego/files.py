"""Files that are either whole or not there, and tensors that know when they were damaged."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from pflego.errors import FolderError
from pflego.weights import Weights

_FORMAT = "pflego 1"


def make_folder(path: Path) -> None:
    """Make a folder and those above it, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"cannot write to the folder {path}: {error.strerror or error}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, or a crash, meets the old content or the new, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):
            raise FolderError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def write_tensors(path: Path, tensors: Weights, facts: dict[str, str]) -> None:
    """Write tensors as safetensors, with a few facts beside them and a digest over both."""
    kept = {  # copies, since safetensors refuses tensors that share memory
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    metadata = {**facts, "format": _FORMAT, "digest": _digest(kept, facts)}
    write_atomically(path, save(kept, metadata=metadata))


def read_tensors(path: Path) -> tuple[Weights, dict[str, str]]:
    """Read what `write_tensors` wrote, or say that it is damaged or foreign. The file is never touched."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{path} is damaged and was left as it is: {error}") from error
    if facts.pop("format", None) != _FORMAT:
        raise FolderError(f"{path} was not written by this version of pflego and was left as it is")
    if facts.pop("digest", None) != _digest(tensors, facts):
        raise FolderError(f"{path} is damaged and was left as it is: its content does not match its digest")
    return tensors, facts


def read_some(path: Path, prefix: str) -> Weights:
    """Read the tensors whose names begin with a prefix, without it, from a file that was checked before."""
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 - not a dictionary
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


def _digest(tensors: Weights, facts: dict[str, str]) -> str:
    digest = blake2b(digest_size=16)
    for key in sorted(facts):
        digest.update(f"{key}={facts[key]}\0".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
