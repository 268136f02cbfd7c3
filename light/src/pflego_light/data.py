"""A client's own samples: arrays, or a .npz file of them."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeAlias

import numpy as np

from pflego_light.arrays import Array
from pflego_light.errors import SettingError

ClientId: TypeAlias = str | int
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
# Python 3.11 counts the depth of ast, which reads NumPy's headers, for all threads together
_one_thread_at_a_time = Lock()


@dataclass(frozen=True)
class Data:
    """Integer labels are classes, by their ids in the whole federation; float labels are regression targets."""

    id: ClientId
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, y = (native(getattr(self, f"{kind}_{part}")) for kind in "xy")
            object.__setattr__(self, f"x_{part}", x)
            object.__setattr__(self, f"y_{part}", y if y.dtype.kind == "f" else y.astype(np.int64))
            if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
                raise SettingError(f"client {self.id!r}: {part} inputs and labels are not equally many")
            for what, array in (("an input", x), ("a label", y)):
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise SettingError(f"client {self.id!r}: {what} of the {part} data is not finite")
            if y.dtype.kind != "f" and (y.ndim != 1 or y.astype(np.int64).min(initial=0) < 0):
                raise SettingError(f"client {self.id!r}: classes are one whole number from 0 per sample")
        if not len(self.x_train):
            raise SettingError(f"client {self.id!r} has no training data")
        if self.x_test.shape[1:] != self.x_train.shape[1:] or self.y_test.shape[1:] != self.y_train.shape[1:]:
            raise SettingError(f"client {self.id!r}: test data are not like training data")

    @classmethod
    def read(cls, client: ClientId, path: str | Path) -> Data:
        """Read x_train, y_train, x_test and y_test of a .npz file; the last two may be left out."""
        try:
            with _one_thread_at_a_time, np.load(Path(path).expanduser(), allow_pickle=False) as archive:
                found = {name: archive[name] for name in _ARRAYS if name in archive}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise SettingError(f"{path} cannot be read as a .npz file: {error}") from error
        if absent := [name for name in _ARRAYS[:2] if name not in found]:
            raise SettingError(f"{path} has no {', '.join(absent)}; it needs {', '.join(_ARRAYS)}")
        x, y = found["x_train"], found["y_train"]
        return cls(client, x, y, found.get("x_test", x[:0]), found.get("y_test", y[:0]))

    @property
    def task(self) -> str:
        """classification or regression, as the labels say."""
        return "regression" if self.y_train.dtype.kind == "f" else "classification"

    @property
    def classes(self) -> tuple[int, ...]:
        """Its classes in ascending order; none in regression."""
        return () if self.task == "regression" else tuple(np.unique(self.y_train).tolist())

    @property
    def outputs(self) -> int:
        """Of a model for this client alone."""
        return len(self.classes) or int(np.prod(self.y_train.shape[1:]))


def native(array: Array) -> Array:
    """Give numbers in a type that everybody has."""
    array = np.asarray(array)
    if array.dtype.kind not in "biuf":
        raise SettingError(f"values of type {array.dtype} cannot be trained on; give numbers")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
