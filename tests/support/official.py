"""Small files in the formats that data sets are published in, written byte by byte."""

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]

MNIST = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
EMNIST = [
    "emnist-byclass-train-images-idx3-ubyte",
    "emnist-byclass-train-labels-idx1-ubyte",
    "emnist-byclass-test-images-idx3-ubyte",
    "emnist-byclass-test-labels-idx1-ubyte",
]
CIFAR_BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
ALPHABETS = {"images_background": ["Greek", "Latin"], "images_evaluation": ["Angelic"]}


def pictures(count: int, *shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(256, size=(count, *shape), dtype=np.uint8)


def labels(count: int, classes: int = 3) -> Bytes:
    return (np.arange(count) % classes).astype(np.uint8)


def idx(array: Bytes) -> bytes:
    """0, 0, 8 for unsigned bytes, the number of dimensions, each size as four bytes, the bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, names: list[str], arrays: list[Bytes], *, zipped: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(names, arrays, strict=True):
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))


def write_emnist_zip(path: Path, arrays: list[Bytes]) -> None:
    """As published: .gz files in a folder gzip/ of a .zip, among those of other splits."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gzip/emnist-letters-train-images-idx3-ubyte.gz", gzip.compress(b"other"))
        for name, array in zip(EMNIST, arrays, strict=True):
            archive.writestr(f"gzip/{name}.gz", gzip.compress(idx(array)))


def cifar_binary(x: Bytes, y: Bytes) -> bytes:
    """A label, then 1024 bytes of red, of green and of blue, an image after the other."""
    return b"".join(
        bytes([label]) + image.transpose(2, 0, 1).tobytes() for image, label in zip(x, y, strict=True)
    )


def cifar_pickle(x: Bytes, y: Bytes) -> bytes:
    """The same as a dictionary, in the words of the pickle protocol 2 that Python 2 wrote."""

    def text(content: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(content)) + content

    pixels = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR"
        b"(K\x01" + struct.pack("<cBcH", b"K", len(x), b"M", 3072) + b"\x86"
        b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89" + text(pixels.tobytes()) + b"tb"
    )
    numbers = b"](" + b"".join(struct.pack("<cB", b"K", label) for label in y.tolist()) + b"e"
    return (
        b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers
        + text(b"batch_label") + text(b"training batch") + b"u."
    )  # fmt: skip


def write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def omniglot_drawings(drawings: int = 4, characters: int = 2) -> dict[str, npt.NDArray[np.bool_]]:
    """Paths below images_background or images_evaluation, and where the ink is."""
    generator = np.random.default_rng(0)
    found, number = {}, 0
    for part, alphabets in ALPHABETS.items():
        for alphabet in alphabets:
            for character in range(1, characters + 1):
                number += 1
                for drawing in range(1, drawings + 1):
                    name = f"{part}/{alphabet}/character{character:02}/{number:04}_{drawing:02}.png"
                    found[name] = generator.random((105, 105)) < 0.2
    return found


def png(ink: npt.NDArray[np.bool_]) -> bytes:
    """One bit a pixel, ink black, as published."""
    content = io.BytesIO()
    Image.fromarray(~ink).save(content, "png")
    return content.getvalue()


def write_omniglot(folder: Path, drawings: Mapping[str, npt.NDArray[np.bool_]], *, zipped: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not zipped:
        for name, ink in drawings.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(png(ink))
        return
    for part in ALPHABETS:
        with zipfile.ZipFile(folder / f"{part}.zip", "w") as archive:
            archive.writestr(f"{part}/", "")
            for name, ink in drawings.items():
                if name.startswith(part):
                    archive.writestr(name, png(ink))


def write_packed(path: Path, drawings: Mapping[str, npt.NDArray[np.bool_]]) -> None:
    """Omniglot in a file of our own format."""
    names = [name for own in ALPHABETS.values() for name in own]
    parts = [name.split("/") for name in drawings]
    np.savez_compressed(
        path,
        images=np.stack([np.packbits(ink, axis=-1) for ink in drawings.values()]),
        alphabet=np.array([names.index(part[1]) for part in parts], np.uint8),
        character=np.array([int(part[3][:4]) - 1 for part in parts], np.int16),
        alphabet_names=np.array(names),
    )
