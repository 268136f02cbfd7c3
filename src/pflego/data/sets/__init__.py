"""Data sets by name: in the data folder, embedded, in the cache, or downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from pflego.data.dataset import DataSet, from_arrays
from pflego.data.sets import npz, omniglot
from pflego.data.sets.cache import arrays, cache_dir
from pflego.data.sets.catalogue import CATALOGUE, Entry
from pflego.data.sets.download import fetch
from pflego.data.sets.embedded import EMBEDDED
from pflego.data.source import Source
from pflego.errors import DataError, FolderError, UserError, unknown


def data_set(
    name: str,
    *,
    data_dir: str | Path | None = None,
    split: str | None = None,
    rotations: int | None = None,
    seed: int = 0,
) -> DataSet:
    """Give a data set: a .npz file by its path, or a name.

    A name is looked for in the data folder (`data_dir`, or the environment's PFLEGO_DATA), among those embedded and
    in the cache, then downloaded. `split`, `rotations` and `seed` say how Omniglot is prepared.
    """
    if Path(name).suffix == ".npz":
        source, name = npz.source(Path(name)), Path(name).stem
        found = source.arrays()
    elif name in EMBEDDED and find(name, data_dir=data_dir) is None:
        _refuse_preparation(name, split, rotations)
        return EMBEDDED[name]()
    else:
        source = get(name, data_dir=data_dir)
        found = arrays(name, source) if name in CATALOGUE else source.arrays()
    if "images" in found:
        return omniglot.divide(found, split=split, rotations=rotations, seed=seed)
    _refuse_preparation(name, split, rotations)
    return from_arrays(name, found, source.place)


def find(name: str, *, data_dir: str | Path | None = None) -> Source | None:
    """Find the files of a data set, in the data folder first, then in the cache. None: there are none."""
    entry = CATALOGUE.get(name)
    if folder := data_folder(data_dir):
        if entry is None:
            return npz.source(file) if (file := folder / f"{name}.npz").is_file() else None
        if source := entry.find(folder):
            return source
    return entry.find(cache_dir()) if entry else None


def get(name: str, *, data_dir: str | Path | None = None) -> Source:
    """Find the files of a data set, or download them into the cache."""
    if source := find(name, data_dir=data_dir):
        return source
    if name not in CATALOGUE:
        raise unknown("data set", name, [*EMBEDDED, *CATALOGUE])
    entry, folder = CATALOGUE[name], cache_dir() / name
    try:
        fetch(entry.remotes, folder)
    except FolderError:
        raise
    except UserError as error:
        raise DataError(
            f"cannot download {name}: {error}. {_by_hand(entry, data_folder(data_dir))}"
        ) from error
    if (source := entry.find(cache_dir())) is None:
        raise DataError(f"{folder} disappeared while {name} was downloaded: try again")
    return source


def data_folder(data_dir: str | Path | None) -> Path | None:
    """Give the folder that is searched first, if one is named."""
    folder = data_dir or os.environ.get("PFLEGO_DATA")
    return Path(folder).expanduser() if folder else None


def _by_hand(entry: Entry, folder: Path | None) -> str:
    """Say which files to put where."""
    where = str(folder) if folder else "a folder and name it with --data-dir or PFLEGO_DATA"
    return f"Put {entry.files}, into {where}. They are at {entry.remotes[0].urls[0].rpartition('/')[0]}/"


def _refuse_preparation(name: str, split: str | None, rotations: int | None) -> None:
    for setting, value in [("split", split), ("rotations", rotations)]:
        if value is not None:
            raise DataError(f"{setting} is for omniglot alone: leave it out for {name}")
