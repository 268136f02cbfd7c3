"""Data sets: arrays for training and testing, before anybody has divided them among clients."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pflego.errors import UserError, unknown
from pflego.randomness import numpy_generator

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class DataSet:
    """x (samples, ...) and y (samples,), for training and for testing."""

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


def digits() -> DataSet:
    """1,797 handwritten digits of 8x8 grey levels, as 64 numbers from 0 to 1; a fifth of them for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _split("digits", (bunch.data / 16).astype(np.float32), bunch.target.astype(np.int64))


def diabetes() -> DataSet:
    """442 patients, 10 measurements each; the progress of their diabetes a year later, standardised."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    target = (bunch.target - bunch.target.mean()) / bunch.target.std()
    x = bunch.data / bunch.data.std(axis=0)
    return _split("diabetes", x.astype(np.float32), target.astype(np.float32))


EMBEDDED: dict[str, Callable[[], DataSet]] = {"digits": digits, "diabetes": diabetes}
ON_FILE = ["mnist", "fashion-mnist", "emnist", "cifar10"]


def data_set(name: str, *, data_dir: str | Path | None = None) -> DataSet:
    """Find a data set: a .npz file, `<name>.npz` in the data folder, or one that is embedded.

    The data folder is `data_dir`, or the environment's PFLEGO_DATA.
    """
    if Path(name).suffix == ".npz":
        return read_npz(Path(name))
    folder = data_dir or os.environ.get("PFLEGO_DATA")
    if folder and (path := Path(folder) / f"{name}.npz").exists():
        return read_npz(path)
    if name in EMBEDDED:
        return EMBEDDED[name]()
    if name in ON_FILE:
        where = f"{folder} has no {name}.npz" if folder else "no data folder is named"
        raise UserError(
            f"{name} is not embedded and {where}: put {name}.npz (x_train, y_train, x_test, y_test) into a folder "
            f"and name it with --data-dir or PFLEGO_DATA"
        )
    raise unknown("data set", name, [*EMBEDDED, *ON_FILE])


def read_npz(path: Path) -> DataSet:
    """Read x_train, y_train, x_test and y_test from a file."""
    wanted = ["x_train", "y_train", "x_test", "y_test"]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if absent := [key for key in wanted if key not in archive]:
                raise UserError(f"{path} has no {', '.join(absent)}; it needs {', '.join(wanted)}")
            arrays = [archive[key] for key in wanted]
    except UserError:
        raise
    except (
        Exception
    ) as error:  # a damaged archive fails in a dozen ways: zipfile, zlib, lzma and NumPy have their own
        raise UserError(f"cannot read {path}: {error or type(error).__name__}") from error
    for part, x, y in [("training", *arrays[:2]), ("test", *arrays[2:])]:
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise UserError(f"{path}: {part} inputs of shape {x.shape}, but labels of shape {y.shape}")
    return DataSet(path.stem, *arrays)


def _split(name: str, x: Array, y: Array) -> DataSet:
    """Set a fifth aside for testing: always the same fifth, so that a data set is one thing."""
    order = numpy_generator(0, f"split {name}").permutation(len(x))
    test, train = order[: len(x) // 5], order[len(x) // 5 :]
    return DataSet(name, x[train], y[train], x[test], y[test])
