"""Which data sets there are, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pflego.data.sets import data_folder, find, npz
from pflego.data.sets.catalogue import KNOWN
from pflego.errors import UserError


@dataclass(frozen=True)
class Line:
    """A data set in a list."""

    name: str
    train: int
    test: int
    classes: int  # 0: a regression
    shape: Sequence[int]
    where: str
    clients: str = ""  # who they are, where the data say it


def listing(data_dir: str | Path | None = None) -> Iterator[Line]:
    """Give one line per data set: those known by name, then other .npz files of the data folder.

    Of a .npz file the samples are counted, since it may hold a part of what was published.
    """
    for name, entry in KNOWN.items():
        source = find(name, data_dir=data_dir)
        if source is not None and source.place.suffix == ".npz" and (line := _of_file(name, source.place)):
            yield line
        else:
            away = f"download, {entry.size / 1e6:.0f} MB" if entry.remotes else entry.home or "embedded"
            yield Line(
                name,
                entry.train,
                entry.test,
                entry.classes,
                entry.shape,
                str(source.place) if source else away,
                entry.clients,
            )
    if folder := data_folder(data_dir):
        for file in sorted(folder.glob("*.npz")):
            if file.stem not in KNOWN and (line := _of_file(file.stem, file)):
                yield line


def _of_file(name: str, file: Path) -> Line | None:
    """Look into a file; None if it holds no data set of training and test samples."""
    try:
        shapes = npz.shapes(file)
        train, test = shapes["x_train"], shapes["x_test"]
        with np.load(file, allow_pickle=False) as archive:
            labels = archive["y_train"]
    except (UserError, KeyError):
        return None
    classes = 0 if labels.dtype.kind == "f" else len(np.unique(labels))
    return Line(name, train[0], test[0], classes, train[1:], str(file))
