"""Labels: classes by number and name, or the numbers of a regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pflego.data.blocks import Array
from pflego.data.own.columns import Indices, integers, is_fractional, kind_of, numbers, words
from pflego.data.problems import warn
from pflego.errors import DataError
from pflego.learning.task import TaskName

if TYPE_CHECKING:
    import pyarrow as pa

_FEW = 20  # different labels at which nothing is suspected


@dataclass(frozen=True)
class Labels:
    """One per sample: ids of the classes that `names` has, len(names) for any class not among them; or numbers."""

    values: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    names: tuple[str, ...] = ()

    @property
    def task(self) -> TaskName:
        """What is learned."""
        return "regression" if self.values.dtype.kind == "f" else "classification"

    @property
    def kinds(self) -> Indices:
        """What test samples are set aside by: the classes, or all in one."""
        return self.values.astype(np.int64) * (self.task == "classification")


def class_name(value: object) -> str:
    """Name a class that was given as a number, a text or a truth value.

    >>> class_name(3.0), class_name(True), class_name("yes")
    ('3', 'true', 'yes')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def numbered(values: Array, names: tuple[str, ...] = ()) -> tuple[Indices, tuple[str, ...]]:
    """Number classes in their order, or as `names` that are known already have them."""
    distinct, places = np.unique(values, return_inverse=True)
    own = tuple(class_name(value) for value in distinct.tolist())
    if not names:
        return places, own
    known = {name: position for position, name in enumerate(names)}
    return np.array([known.get(name, len(names)) for name in own], np.int64)[places], names


def is_regression(task: str | None, *, text: bool, fraction: bool, name: str) -> bool:
    """Decide what labels are: fractions are numbers to predict, all others classes, unless a task is named."""
    if task == "regression" and text:
        raise DataError(f"{name} holds texts: a regression needs numbers")
    return fraction if task is None else task == "regression"


def labels(name: str, column: pa.ChunkedArray, task: str | None, *, names: tuple[str, ...] = ()) -> Labels:
    """Read the labels of a column that has no gaps; `names` are those of the classes, where known."""
    kind, called = kind_of(column), f"the label column {name!r}"
    if kind not in ("number", "category"):
        raise DataError(f"{called} {'holds pictures' if kind == 'image' else kind}")
    if kind == "category":
        is_regression(task, text=True, fraction=False, name=called)
        found = words(column)
        if not names:
            return Labels(found.codes, found.names)
        codes = found.among(names)
        return Labels(np.where(codes < 0, len(names), codes), names)
    values = numbers(column)
    if values.shape[1] != 1:
        raise DataError(f"{called} holds lists: one value a sample is needed")
    if is_regression(task, text=False, fraction=is_fractional(column), name=called):
        return Labels(values[:, 0])
    whole = integers(column)
    return Labels(*numbered(values[:, 0] if whole is None else whole, names))


def suspect(found: Labels, name: str) -> None:
    """Warn of labels that look like something else."""
    distinct, rows = len(np.unique(found.values)), len(found.values)
    if found.task == "regression":
        whole = (found.values == np.round(found.values)).all()
        if whole and distinct <= _FEW:
            warn(
                f"the label column {name!r} holds {distinct} different whole numbers written as fractions, taken as a "
                f"regression: if they are classes, say task='classification'"
            )
    elif distinct > _FEW and 3 * distinct > rows:
        other = (
            " for a regression say task='regression'"
            if found.names[0].lstrip("-").isdigit()
            else " is it the label?"
        )
        warn(f"the label column {name!r} has {distinct} classes in {rows} rows:{other}")
    elif distinct == 1:
        warn(
            f"the label column {name!r} has one class alone, {found.names[0]!r}: there is nothing to tell apart"
        )
