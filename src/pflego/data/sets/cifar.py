"""CIFAR-10's official files: five training batches and a test batch, binary or pickled, in a folder or a .tar.gz."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pflego.data.blocks import Array, Blocks
from pflego.data.sets.pickled import load_arrays
from pflego.data.source import Source, reading

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

_SIDE, _CHANNELS = 32, 3
_PIXELS = _CHANNELS * _SIDE * _SIDE
_LARGEST = 1 << 26  # bytes of a batch, which has 31 million


class _Format(NamedTuple):
    """One of the two versions that are offered."""

    archive: str
    folder: str
    ending: str
    decode: Callable[[bytes], Batch]

    @property
    def batches(self) -> list[str]:
        """The files, the test batch last."""
        return [f"{name}{self.ending}" for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]]


def find(folder: Path) -> Source | None:
    """Find the six batches in a folder or a folder of their own in it, or one of the official archives."""
    for version in _FORMATS:
        for place in (folder, folder / version.folder):
            files = [place / name for name in version.batches]
            if all(file.is_file() for file in files):
                return Source(files, partial(_read_files, files, version.decode))
    for version in _FORMATS:
        if (archive := folder / version.archive).is_file():
            return Source([archive], partial(_read_archive, archive, version))
    return None


def _read_files(files: list[Path], decode: Callable[[bytes], Batch]) -> Iterator[tuple[str, Blocks]]:
    batches = []
    for file in files:
        with reading(file), file.open("rb") as batch:
            batches.append(decode(_bounded(batch)))
    yield from _arrays(batches)


def _read_archive(archive: Path, version: _Format) -> Iterator[tuple[str, Blocks]]:
    found = {}
    with reading(archive):
        with tarfile.open(archive) as members:
            for member in members:
                if (name := Path(member.name).name) in version.batches and (
                    file := members.extractfile(member)
                ):
                    found[name] = version.decode(_bounded(file))
        if absent := [name for name in version.batches if name not in found]:
            raise ValueError(f"it has no {', '.join(absent)}")
    yield from _arrays([found[name] for name in version.batches])


def _bounded(file: IO[bytes]) -> bytes:
    """Read a batch, but no more than a batch can have: what is compressed may be of any length."""
    content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"a batch has more than {_LARGEST:,} bytes")
    return content


def _arrays(batches: list[Batch]) -> Iterator[tuple[str, Blocks]]:
    for part, own in [("train", batches[:-1]), ("test", batches[-1:])]:
        rows = sum(len(labels) for _, labels in own)
        pictures: list[Array] = [
            pixels.reshape(-1, _CHANNELS, _SIDE, _SIDE).transpose(0, 2, 3, 1) for pixels, _ in own
        ]
        byte = np.dtype(np.uint8)
        yield f"x_{part}", Blocks((rows, _SIDE, _SIDE, _CHANNELS), byte, pictures)
        yield f"y_{part}", Blocks((rows,), byte, [labels for _, labels in own])


def _decode_binary(content: bytes) -> Batch:
    """Decode one row per image: a byte of label, then the pixels."""
    if len(content) % (1 + _PIXELS):
        raise ValueError(f"its length is no multiple of {1 + _PIXELS} bytes, it is cut short")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0]


def _decode_pickle(content: bytes) -> Batch:
    """Decode a dictionary of data (images, 3072) and labels, pickled by Python 2."""
    batch: Any = load_arrays(BytesIO(content))
    pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _PIXELS):
        raise ValueError(f"it has {len(labels)} labels, but data of shape {pixels.shape}")
    return pixels, labels.astype(np.uint8)


_FORMATS = [
    _Format("cifar-10-binary.tar.gz", "cifar-10-batches-bin", ".bin", _decode_binary),
    _Format("cifar-10-python.tar.gz", "cifar-10-batches-py", "", _decode_pickle),
]
