"""Data sets as .npz files: x_train, y_train, x_test, y_test and columns, or packed: drawings of Omniglot, series."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from pflego.data.blocks import Blocks
from pflego.data.dataset import ARRAYS, column_names
from pflego.data.sets import omniglot, watch
from pflego.data.source import Source, reading
from pflego.errors import DataError


def source(path: Path) -> Source:
    """Make a .npz file the source of a data set."""
    return Source([path], partial(_read, path))


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Look up the shapes of a file's arrays without reading them."""
    import zipfile

    found = {}
    with reading(path), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                version = np.lib.format.read_magic(member)
                header = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                found[name.removesuffix(".npy")] = header(member)[0]
    return found


def _read(path: Path) -> Iterator[tuple[str, Blocks]]:
    with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        packed = next((one for one in (omniglot, watch) if one.PACKED[0] in archive), None)
        packed = None if "x_train" in archive else packed
        wanted = packed.PACKED if packed else ARRAYS
        if absent := [key for key in wanted if key not in archive]:
            raise DataError(f"{path} has no {', '.join(absent)}; it needs {', '.join(wanted)}")
        if packed:
            yield from packed.unpack({key: archive[key] for key in wanted})
            return
        pairs = [f"{key}_{part}" for key in column_names(archive) for part in ("train", "test")]
        for key in [*wanted, *pairs]:
            yield key, Blocks.of(archive[key])
