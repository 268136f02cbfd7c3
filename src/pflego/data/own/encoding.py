"""From the values of columns to the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from pflego.data.own.columns import Floats, Indices, kind_of, numbers, words
from pflego.data.schema import Feature
from pflego.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def standard(values: Floats) -> tuple[Floats, Floats]:
    """Compute mean and standard deviation of each column's known values; 1 where all are the same."""
    there = ~np.isnan(values)
    count = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, values, 0).sum(axis=0) / count
    spread = np.sqrt((np.where(there, values - mean, 0) ** 2).sum(axis=0) / count)
    return mean, np.where(spread > 1e-9 * np.abs(mean), spread, 1.0)


def fit(
    name: str,
    column: pa.ChunkedArray,
    train: Indices,
    *,
    scale: bool,
    kind: Literal["ordered", "date"] | None = None,
    order: tuple[str, ...] = (),
    mark_gaps: bool = False,
) -> Feature:
    """Learn from the training rows of a column how it becomes inputs.

    A column of numbers is a quantity unless `kind` says otherwise; `order` names the positions of an ordered one.
    `mark_gaps`: one more input says whether a value is missing, where some are.
    """
    if kind_of(column) == "category":
        found = words(column)
        seen = np.unique(found.codes[train])
        return Feature(name, "category", categories=tuple(found.names[code] for code in seen if code >= 0))
    values = numbers(column)[train]
    mean, spread = standard(values)
    return Feature(
        name,
        kind or "number",
        categories=order,
        mean=tuple(mean.tolist()),
        scale=tuple(spread.tolist()) if scale else (),
        gap=mark_gaps and bool(np.isnan(values).any()),
    )


def encode(
    features: Sequence[Feature],
    column: Callable[[str], pa.ChunkedArray],
    rows: Indices,
) -> npt.NDArray[np.float32]:
    """Encode rows of columns as inputs, (rows, inputs). A missing number is filled with the mean."""
    x = np.zeros((len(rows), sum(feature.width for feature in features)), np.float32)
    start = 0
    for feature in features:
        _put(feature, column(feature.name), rows, x[:, start : start + feature.width])
        start += feature.width
    return x


def _put(feature: Feature, column: pa.ChunkedArray, rows: Indices, inputs: npt.NDArray[np.float32]) -> None:
    if feature.kind == "category":
        codes = words(column).among(feature.categories)[rows]
        known = np.flatnonzero(codes >= 0)
        inputs[known, codes[known]] = 1
        return
    values = numbers(column)[rows]
    mean = np.array(feature.mean)
    if values.shape[1] != len(mean):
        raise DataError(f"holds lists of {values.shape[1]} numbers, not of {len(mean)}")
    absent = np.isnan(values)
    if feature.gap:
        inputs[:, -1] = absent.any(axis=1)
    values = np.where(absent, mean, values)
    inputs[:, : len(mean)] = (values - mean) / feature.scale if feature.scale else values
