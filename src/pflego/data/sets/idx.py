"""IDX files, the format of the MNIST family: a magic number, the shape, then bytes. Plain, .gz, or .gz in a .zip."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import IO, cast

import numpy as np

from pflego.data.blocks import Array, Blocks, rows_a_block
from pflego.data.source import Source, reading
from pflego.errors import UserError

_MNIST = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
_EMNIST = {
    "x_train": "emnist-byclass-train-images-idx3-ubyte",
    "y_train": "emnist-byclass-train-labels-idx1-ubyte",
    "x_test": "emnist-byclass-test-images-idx3-ubyte",
    "y_test": "emnist-byclass-test-labels-idx1-ubyte",
}
_LARGEST = 1 << 20  # bytes of an image
_EMNIST_ARCHIVES = ["gzip.zip", "emnist.zip"]
# MNIST and Fashion-MNIST name their files alike: the sha256 of the training labels' file tells whose they are.
_LABELS = {
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5": "mnist",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9": "fashion-mnist",
}


def find_mnist(name: str, folder: Path) -> Source | None:
    """Find the four files of MNIST or Fashion-MNIST in a folder; those of the other one do not count."""
    files = _files(folder, _MNIST)
    if files is None:
        return None
    try:
        with ExitStack() as stack, reading(files["y_train"]):
            labels = _open(files["y_train"], "", stack).read(_LARGEST)
    except UserError:  # to be said when it is read
        labels = b""
    owner = _LABELS.get(sha256(labels).hexdigest(), name)
    return Source(list(files.values()), partial(_read, files)) if owner == name else None


def find_emnist(folder: Path) -> Source | None:
    """Find the four ByClass files of EMNIST in a folder, its gzip/ or the official .zip. Images are set upright."""
    for place in (folder, folder / "gzip"):
        if files := _files(place, _EMNIST):
            return Source(list(files.values()), partial(_read, files, transpose=True))
    for name in _EMNIST_ARCHIVES:
        if (archive := folder / name).is_file():
            files = dict.fromkeys(_EMNIST, archive)
            return Source([archive], partial(_read, files, members=_EMNIST, transpose=True))
    return None


def _files(folder: Path, names: Mapping[str, str]) -> dict[str, Path] | None:
    found = {
        key: path
        for key, name in names.items()
        for path in (folder / f"{name}.gz", folder / name)  # the plain one, where both are there
        if path.is_file()
    }
    return found if len(found) == len(names) else None


def _read(
    files: Mapping[str, Path], *, members: Mapping[str, str] | None = None, transpose: bool = False
) -> Iterator[tuple[str, Blocks]]:
    rows: dict[str, int] = {}
    for key, path in files.items():
        with ExitStack() as stack, reading(path):
            file = _open(path, members[key] if members else "", stack)
            shape = _shape(file)
            if len(shape) != (1 if key.startswith("y") else 3) or prod(shape[1:]) > _LARGEST:
                raise ValueError(f"its shape is {shape}, which is none of labels or images")
            rows[key] = shape[0]
            if key.startswith("y") and rows[f"x{key[1:]}"] != rows[key]:
                raise ValueError(f"{rows[key]} labels, but {rows[f'x{key[1:]}']} images beside them")
            blocks = _blocks(path, file, shape)
            if transpose and len(shape) == 3:
                shape = (shape[0], shape[2], shape[1])
                blocks = (block.transpose(0, 2, 1) for block in blocks)
            yield key, Blocks(shape, np.dtype(np.uint8), blocks)


def _shape(file: IO[bytes]) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08" or magic[3] == 0:  # 8: unsigned bytes
        raise ValueError(f"it is no IDX file of bytes, it begins with {magic.hex(' ') or 'nothing'}")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise ValueError("it is cut short")
    return tuple(np.frombuffer(sizes, ">u4").tolist())


def _blocks(path: Path, file: IO[bytes], shape: tuple[int, ...]) -> Iterator[Array]:
    step, width = rows_a_block(shape, np.dtype(np.uint8)), prod(shape[1:])
    with reading(path):
        for start in range(0, shape[0], step):
            rows = min(step, shape[0] - start)
            content = file.read(rows * width)
            if len(content) < rows * width:
                raise ValueError(
                    f"it is cut short, of {shape[0]} rows {start + len(content) // width} are there"
                )
            yield np.frombuffer(content, np.uint8).reshape(rows, *shape[1:])
        if file.read(1):  # a compressed file is checked when its end is read
            raise ValueError(f"more follows the {shape[0]} rows it promises")


def _open(path: Path, member: str, stack: ExitStack) -> IO[bytes]:
    """Open a file, or a member of an archive; what is compressed in it comes out plain."""
    if not member:
        file: IO[bytes] = stack.enter_context(path.open("rb"))
        packed = path.suffix == ".gz"
    else:
        archive = stack.enter_context(zipfile.ZipFile(path))
        names = [name for name in archive.namelist() if Path(name).name in (member, f"{member}.gz")]
        if not names:
            raise ValueError(f"it has no {member}.gz")
        file = stack.enter_context(archive.open(names[0]))
        packed = names[0].endswith(".gz")
    if packed:
        file = stack.enter_context(cast(IO[bytes], gzip.GzipFile(fileobj=file)))
    return file
