"""What a data set is, before anybody has divided it among clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pflego.data.blocks import Array
from pflego.errors import DataError

ARRAYS = ["x_train", "y_train", "x_test", "y_test"]


@dataclass(frozen=True)
class Preparation:
    """How a data set is to be prepared, as `pflego.load` explains it; None where it is not given."""

    split: str | None = None
    rotations: int | None = None
    window: int | None = None
    minimum: int | None = None
    test_share: float | None = None

    def given(self, **resolved: object) -> dict[str, object]:
        """Give what was asked for and what became of it."""
        given = {**vars(self), **resolved}
        return {name: value for name, value in given.items() if value is not None}

    def refuse_others(self, name: str, own: Collection[str]) -> None:
        """Refuse what a data set does not know."""
        for setting in self.given().keys() - {*own}:
            raise DataError(f"{setting} does not apply to {name}: leave it out")


@dataclass(frozen=True)
class DataSet:
    """x (samples, ...) and y (samples,), for training and for testing.

    `columns` are further values a sample, (training, testing), by which it can be divided; `clients` names
    the one that says by nature whose a sample is; `prepared` are the settings that made it what it is; `weights`
    say how much each training sample counts, None: all alike.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    columns: Mapping[str, tuple[Array, Array]] = field(default_factory=dict)
    clients: str | None = None
    prepared: Mapping[str, object] = field(default_factory=dict)
    weights: Array | None = None

    def weighted_by(self, column: str) -> DataSet:
        """Take a column as the weights of samples."""
        if column not in self.columns:
            held = f"it has {', '.join(self.columns)}" if self.columns else "it has none"
            raise DataError(
                f"{self.name}: no column {column!r} of weights; {held} (<column>_train and <column>_test)"
            )
        return replace(self, weights=self.columns[column][0], prepared={**self.prepared, "weight": column})


def from_arrays(name: str, arrays: Mapping[str, Array], place: Path) -> DataSet:
    """Check that arrays belong together, and make a data set of them."""
    for part, x, y in [("training", "x_train", "y_train"), ("test", "x_test", "y_test")]:
        inputs, labels = arrays[x].shape, arrays[y].shape
        if not inputs or not labels or inputs[0] != labels[0]:
            raise DataError(f"{place}: {part} inputs of shape {inputs}, but labels of shape {labels}")
    columns = {key: (arrays[f"{key}_train"], arrays[f"{key}_test"]) for key in column_names(arrays)}
    for key, pair in columns.items():
        for part, values in zip(("train", "test"), pair, strict=True):
            if values.shape != arrays[f"y_{part}"].shape[:1]:
                raise DataError(
                    f"{place}: {key}_{part} has shape {values.shape}, it needs a value for each of the "
                    f"{len(arrays[f'y_{part}'])} samples"
                )
    x_train, y_train, x_test, y_test = (arrays[key] for key in ARRAYS)
    return DataSet(name, x_train, y_train, x_test, y_test, columns)


def column_names(keys: Mapping[str, object]) -> list[str]:
    """List the columns that arrays come with: every further pair of <column>_train and <column>_test."""
    stems = [key.removesuffix("_train") for key in keys if key.endswith("_train") and key not in ARRAYS]
    return [stem for stem in stems if f"{stem}_test" in keys]
