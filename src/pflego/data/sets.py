"""Data sets by name: in the data folder, embedded, in the cache, or downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pflego.data import npz, omniglot
from pflego.data.blocks import Array
from pflego.data.cache import arrays, cache_dir
from pflego.data.catalogue import CATALOGUE, Entry
from pflego.data.dataset import DataSet, from_arrays
from pflego.data.download import fetch
from pflego.data.source import Source
from pflego.errors import FolderError, UserError, unknown
from pflego.randomness import numpy_generator


def digits() -> DataSet:
    """1,797 handwritten digits of 8x8 grey levels, as 64 numbers from 0 to 1; a fifth of them for testing."""
    found = find_spec("sklearn")
    folders = [] if found is None else found.submodule_search_locations or []
    files = [file for folder in folders if (file := Path(folder, "datasets/data/digits.csv.gz")).is_file()]
    if files:  # scikit-learn carries them; loading all of it for that takes two seconds
        table = np.loadtxt(files[0], delimiter=",")
        x, y = table[:, :-1], table[:, -1]
    else:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
    return _split("digits", (x / 16).astype(np.float32), y.astype(np.int64))


def diabetes() -> DataSet:
    """442 patients, 10 measurements each; the progress of their diabetes a year later, standardised."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    target = (bunch.target - bunch.target.mean()) / bunch.target.std()
    x = bunch.data / bunch.data.std(axis=0)
    return _split("diabetes", x.astype(np.float32), target.astype(np.float32))


EMBEDDED: dict[str, Callable[[], DataSet]] = {"digits": digits, "diabetes": diabetes}


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
        raise UserError(
            f"cannot download {name}: {error}. {_by_hand(entry, data_folder(data_dir))}"
        ) from error
    if (source := entry.find(cache_dir())) is None:
        raise UserError(f"{folder} disappeared while {name} was downloaded: try again")
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
            raise UserError(f"{setting} is for omniglot alone: leave it out for {name}")


def _split(name: str, x: Array, y: Array) -> DataSet:
    """Set a fifth aside for testing: always the same fifth, so that a data set is one thing."""
    order = numpy_generator(0, f"split {name}").permutation(len(x))
    test, train = order[: len(x) // 5], order[len(x) // 5 :]
    return DataSet(name, x[train], y[train], x[test], y[test])
