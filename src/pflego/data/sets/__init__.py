"""Data sets by name: in the data folder, embedded, in the cache, or downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from pflego.data.dataset import DataSet, Preparation, from_arrays
from pflego.data.sets import npz, omniglot, shakespeare, watch
from pflego.data.sets.cache import arrays, cache_dir
from pflego.data.sets.catalogue import CATALOGUE, KNOWN, Entry
from pflego.data.sets.download import fetch
from pflego.data.sets.embedded import EMBEDDED
from pflego.data.source import Source
from pflego.errors import DataError, FolderError, UserError, unknown


def data_set(
    name: str,
    *,
    data_dir: str | Path | None = None,
    wanted: Preparation | None = None,
    seed: int = 0,
) -> DataSet:
    """Give a data set: a .npz file by its path, or a name.

    A name is looked for in the data folder (`data_dir`, or the environment's PFLEGO_DATA), among those embedded and
    in the cache, then downloaded. `wanted` and `seed` say how those are prepared that are no more than raw material.
    """
    wanted = wanted or Preparation()
    if Path(name).suffix == ".npz":
        source, name = npz.source(Path(name)), Path(name).stem
        found = source.arrays()
    elif name in EMBEDDED and find(name, data_dir=data_dir) is None:
        wanted.refuse_others(name, ())
        return EMBEDDED[name]()
    else:
        source = get(name, data_dir=data_dir)
        found = arrays(name, source) if name in CATALOGUE else source.arrays()
    if "images" in found:
        return omniglot.divide(found, wanted, seed=seed)
    if "series" in found:
        return watch.divide(found, wanted)
    if "speeches" in found:
        return shakespeare.divide(found, wanted)
    wanted.refuse_others(name, ())
    return from_arrays(name, found, source.place)


def find(name: str, *, data_dir: str | Path | None = None) -> Source | None:
    """Find the files of a data set, in the data folder first, then in the cache. None: there are none."""
    entry = KNOWN.get(name)
    entry = entry if entry and (entry.remotes or entry.tables) else None
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
    if name in KNOWN and KNOWN[name].home:
        raise DataError(
            f"{name} is not downloaded, since there is no copy of it whose bytes are published. "
            f"{_by_hand(KNOWN[name], data_folder(data_dir))}"
        )
    if name not in CATALOGUE:
        raise unknown("data set", name, [*KNOWN])
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
    if entry.home:
        return f"Put {entry.files} into {where}. It is at {entry.home}"
    return f"Put {entry.files}, into {where}. They are at {entry.remotes[0].urls[0].rpartition('/')[0]}/"
