"""Pictures as arrays of bytes, all of one size, grey or in colours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from math import prod
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from pflego.data.problems import warn
from pflego.data.source import reading
from pflego.errors import DataError, shortened

if TYPE_CHECKING:
    from PIL.Image import Image

Picture: TypeAlias = Path | bytes  # a file, or what one holds
Bytes: TypeAlias = npt.NDArray[np.uint8]

_LARGEST = 10_000  # pixels a side
_GREY = {"1", "L"}
_CLEAR = {"LA", "La", "PA", "RGBA", "RGBa"}  # with a transparency
_DEEP = {"I", "F", "I;16", "I;16B", "I;16L", "I;16N"}  # more than 8 bits per pixel


def parse_size(size: int | str | None) -> tuple[int, int] | None:
    """Read a size, as (width, height): one number for both, or two.

    >>> parse_size(28), parse_size("64x48")
    ((28, 28), (64, 48))
    """
    if size is None:
        return None
    sides = str(size).lower().split("x")
    if len(sides) > 2 or not all(re.fullmatch("0*[1-9][0-9]{0,8}", side) for side in sides):
        raise DataError(
            f"size must be a number of pixels, or width x height such as 64x48, not {shortened(size)}"
        )
    if (largest := max(map(int, sides))) > _LARGEST:
        raise DataError(f"size must be at most {_LARGEST} pixels a side, not {largest}")
    return int(sides[0]), int(sides[-1])


def common_shape(
    pictures: Sequence[Picture], names: Sequence[object], size: tuple[int, int] | None = None
) -> tuple[int, ...]:
    """Find the shape of every picture: (height, width) if all are grey, (height, width, 3) if one is not.

    Only their headers are looked at. Pictures of different sizes are refused, unless they are to be resized.
    """
    with ThreadPoolExecutor(cpu_count()) as pool:
        headers = list(pool.map(_header, pictures, names))
    for name, (mode, _) in zip(names, headers, strict=True):
        if mode in _DEEP:
            raise DataError(f"{name} has more than 8 bits a pixel (mode {mode}): convert it to 8 bits first")
    if clear := sum(mode in _CLEAR for mode, _ in headers):
        warn(
            f"{clear} of {len(headers)} pictures have transparent parts, which are taken as if they were not"
        )
    first, wanted = names[0], size or headers[0][1]
    for name, (_, found) in zip(names, headers, strict=True):
        if size is None and found != wanted:
            raise DataError(
                f"{first} is {wanted[0]}x{wanted[1]} pixels, but {name} {found[0]}x{found[1]}: "
                f"say a size for all, such as size='{wanted[0]}x{wanted[1]}' (--size)"
            )
    grey = all(mode in _GREY for mode, _ in headers)
    return (wanted[1], wanted[0]) if grey else (wanted[1], wanted[0], 3)


def decode(pictures: Sequence[Picture], names: Sequence[object], shape: tuple[int, ...]) -> Bytes:
    """Read pictures in a shape, grey or in colours; those of another size are resized."""
    from PIL.Image import Resampling

    try:
        pixels = np.empty((len(pictures), *shape), np.uint8)
    except (MemoryError, ValueError) as error:
        wanted = len(pictures) * prod(shape) / 1e9
        raise DataError(
            f"{len(pictures)} pictures of {'x'.join(map(str, shape))} bytes take {wanted:,.0f} GB, more than there is: "
            f"say a smaller size (--size)"
        ) from error

    def put(number: int) -> None:
        with _opened(pictures[number], names[number]) as image:
            image = image.convert("RGB" if len(shape) == 3 else "L")
            if image.size != (shape[1], shape[0]):
                image = image.resize((shape[1], shape[0]), Resampling.BILINEAR)
            pixels[number] = np.asarray(image)

    with ThreadPoolExecutor(cpu_count()) as pool:
        list(pool.map(put, range(len(pictures))))
    return pixels


def _header(picture: Picture, name: object) -> tuple[str, tuple[int, int]]:
    with _opened(picture, name) as image:
        return image.mode, image.size


@contextmanager
def _opened(picture: Picture, name: object) -> Iterator[Image]:
    from PIL import Image

    with reading(name), Image.open(picture if isinstance(picture, Path) else BytesIO(picture)) as image:
        yield image
