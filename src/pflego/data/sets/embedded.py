"""Data sets that come with scikit-learn: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pflego.data.blocks import Array
from pflego.data.dataset import DataSet
from pflego.randomness import numpy_generator


def digits() -> DataSet:
    """Load 1,797 handwritten digits of 8x8 grey levels, as 64 numbers from 0 to 1; a fifth is for testing."""
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
    """Load 442 patients, 10 measurements each; the progress of their diabetes a year later, standardised."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    target = (bunch.target - bunch.target.mean()) / bunch.target.std()
    x = bunch.data / bunch.data.std(axis=0)
    return _split("diabetes", x.astype(np.float32), target.astype(np.float32))


def _split(name: str, x: Array, y: Array) -> DataSet:
    """Set a fifth aside for testing: always the same fifth, so that a data set is one thing."""
    order = numpy_generator(0, f"split {name}").permutation(len(x))
    test, train = order[: len(x) // 5], order[len(x) // 5 :]
    return DataSet(name, x[train], y[train], x[test], y[test])


EMBEDDED: dict[str, Callable[[], DataSet]] = {"digits": digits, "diabetes": diabetes}
