"""Omniglot: 50 alphabets, 1,623 characters, 20 drawings of each; 105x105 pixels, here 28x28, ink bright.

One file holds all of it in a format of our own: omniglot.npz, one row per drawing, `images` (105, 14) bytes = 105x105
bits packed along the last axis, 1 = ink; `alphabet` into `alphabet_names`; `character` from 0, over all alphabets.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pflego.data.blocks import Array, Blocks
from pflego.data.dataset import DataSet, Preparation
from pflego.data.source import Source, reading
from pflego.errors import DataError
from pflego.randomness import numpy_generator

Bytes = npt.NDArray[np.uint8]

ALPHABET = "alphabet"
PACKED = ["images", "alphabet", "character", "alphabet_names"]
ROTATIONS = 4

_PARTS = ["images_background", "images_evaluation"]
_NAME = re.compile(
    r"(\d+)_(\d+)\.png$"
)  # 0965_01.png: the number of the character, from 1, and of the drawing
_SIDE, _SMALL = 105, 28
_SOME = 500  # drawings that are shrunk at a time


class _Drawing(NamedTuple):
    character: int
    drawing: int
    part: int
    alphabet: str
    pixels: bytes  # packed, 1 = ink


def find(folder: Path) -> Source | None:
    """Find the folders images_background and images_evaluation, or their .zip archives, in a folder."""
    files = []
    for part in _PARTS:
        here = [path for path in (folder / part, folder / f"{part}.zip") if path.exists()]
        if not here:
            return None
        files.append(here[0])
    return Source(files, partial(_read_images, files))


def unpack(arrays: Mapping[str, Array]) -> Iterator[tuple[str, Blocks]]:
    """Give the drawings of the packed format, small and grey, and whose they are."""
    images = arrays["images"]
    if images.dtype != np.uint8 or images.shape[1:] != (_SIDE, -(-_SIDE // 8)):
        raise ValueError(f"images are {images.dtype} of shape {images.shape}, not uint8 (drawings, 105, 14)")
    byte = np.dtype(np.uint8)
    bits = images.view(np.uint8)
    parts = (shrink(bits[start : start + _SOME]) for start in range(0, len(images), _SOME))
    yield "images", Blocks((len(images), _SMALL, _SMALL), byte, parts)
    for key in PACKED[1:]:
        yield key, Blocks.of(np.asarray(arrays[key]))


def shrink(packed: Bytes) -> Bytes:
    """Resize packed drawings to 28x28 grey levels, each the mean of the 3 or 4 by 3 or 4 pixels it covers.

    Rows first, rounded, then columns: to the last bit what Pillow's BOX filter gives.
    """
    pixel = np.arange(_SIDE)
    window = ((2 * pixel + 1) * _SMALL - 1) // (2 * _SIDE)
    within = (window[:, None] == np.arange(_SMALL)).astype(np.float32)  # (105, 28)
    size = within.sum(axis=0)
    bits = np.unpackbits(packed, axis=-1, count=_SIDE).astype(np.float32)
    rows = np.floor(255 * (bits @ within) / size + 0.5)  # (drawings, 105, 28)
    levels: Bytes = np.floor((within.T @ rows) / size[:, None] + 0.5).astype(np.uint8)
    return levels


def divide(arrays: Mapping[str, Array], wanted: Preparation, *, seed: int) -> DataSet:
    """Set a quarter of every character aside for testing. The alphabet says whose a sample is.

    split="drawing" sets aside drawings, then rotates; split="paper" rotates first, as the authors did, so that
    rotations of one drawing fall on both sides.
    """
    wanted.refuse_others("omniglot", ["split", "rotations"])
    split = wanted.split or "drawing"
    rotations = ROTATIONS if wanted.rotations is None else wanted.rotations
    images, character = np.asarray(arrays["images"]), np.asarray(arrays["character"], np.int64)
    x = np.stack(
        [np.rot90(images, k, axes=(1, 2)) for k in range(rotations)], axis=1
    )  # (drawings, k, 28, 28)
    x = x.reshape(-1, *images.shape[1:])
    y, whose = (
        np.repeat(values, rotations)
        for values in (character, np.asarray(arrays["alphabet_names"])[arrays["alphabet"]])
    )
    each = rotations if split == "drawing" else 1  # samples that stay together
    for_test = np.repeat(_set_aside(y[::each], seed=seed), each)
    train, test = ~for_test, for_test
    return DataSet(
        "omniglot",
        x[train],
        y[train],
        x[test],
        y[test],
        columns={ALPHABET: (whose[train], whose[test])},
        clients=ALPHABET,
        prepared={"split": split, "rotations": rotations},
    )


def _set_aside(character: npt.NDArray[np.int64], *, seed: int) -> npt.NDArray[np.bool_]:
    """Draw a quarter of every character's samples."""
    chosen = np.zeros(len(character), bool)
    order = np.argsort(character, kind="stable")
    numbers, starts = np.unique(character[order], return_index=True)
    for number, own in zip(numbers, np.split(order, starts[1:]), strict=True):
        drawn = numpy_generator(seed, "split omniglot", client=number).permutation(len(own))
        chosen[own[drawn[: len(own) // 4]]] = True
    return chosen


def _read_images(files: list[Path]) -> Iterator[tuple[str, Blocks]]:
    drawings = sorted(drawing for part, path in enumerate(files) for drawing in _drawings(path, part))
    alphabets = sorted({(drawing.part, drawing.alphabet) for drawing in drawings})  # background ones first
    number = {place: k for k, place in enumerate(alphabets)}
    width = -(-_SIDE // 8)
    packed = np.frombuffer(b"".join(d.pixels for d in drawings), np.uint8).reshape(-1, _SIDE, width)
    yield from unpack(
        {
            "images": packed,
            "alphabet": np.array([number[d.part, d.alphabet] for d in drawings], np.uint8),
            "character": np.array([d.character - 1 for d in drawings], np.int16),
            "alphabet_names": np.array([name for _, name in alphabets]),
        }
    )


def _drawings(path: Path, part: int) -> Iterator[_Drawing]:
    """Read the images of one part, each at <alphabet>/character<nn>/<number>_<drawing>.png."""
    count = 0
    for name, content in _images(path):
        if found := _NAME.match(name.name):
            count += 1
            with reading(path / name):
                yield _Drawing(int(found[1]), int(found[2]), part, name.parent.parent.name, _pack(content))
    if not count:
        raise DataError(f"{path} has no drawings, <alphabet>/character01/0001_01.png and so on")


def _images(path: Path) -> Iterator[tuple[Path, bytes]]:
    if path.is_dir():
        for file in path.glob("*/*/*.png"):
            yield file.relative_to(path), file.read_bytes()
        return
    with reading(path), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".png") and "__MACOSX" not in name:
                yield Path(name), archive.read(name)


def _pack(content: bytes) -> bytes:
    from PIL import Image

    with Image.open(BytesIO(content)) as image:
        if image.size != (_SIDE, _SIDE):
            raise ValueError(f"it has {image.width}x{image.height} pixels, a drawing has {_SIDE}x{_SIDE}")
        return np.packbits(np.asarray(image.convert("L")) < 128, axis=-1).tobytes()  # ink is black
