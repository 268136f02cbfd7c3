"""One participant and its own data."""

from __future__ import annotations

from functools import cached_property
from math import inf
from numbers import Integral
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflego.errors import DataError, is_path, shortened
from pflego.weights import aligned, is_finite

ClientId: TypeAlias = str | int
Array: TypeAlias = npt.NDArray[np.generic] | Tensor

_FEW = 1000  # labels that a set takes in more quickly than a tensor's operations begin
_AS_THEY_ARE = frozenset(
    map(np.dtype, (np.float32, np.float64, np.int64, np.uint8))
)  # in this machine's order of bytes


class Client:
    """One participant and its own data.

    Parameters
    ----------
    id
        Its name in the federation.
    x_train, y_train
        Training inputs, (samples, ...), and labels. Integer labels are classes, by their ids in the whole
        federation; float labels, (samples,) or (samples, outputs), are regression targets.
    x_test, y_test
        The same for testing; may be left out or empty. A test label that never occurs in training counts as
        an error of the client's model.
    weights
        How much each training sample counts in the loss, one number from 0 on per sample, not all 0; None: all alike.
        The client's loss is their weighted mean, and with weighting="samples" it counts by their sum. Tests count
        every sample alike.

    uint8 inputs are taken as images and divided by 255 where they are used; they stay bytes until then.

    >>> Client("ward-3", np.zeros((4, 2)), np.array([7, 7, 3, 7])).classes
    tensor([3, 7])
    """

    def __init__(
        self,
        id: ClientId,  # noqa: A002 - the name of the attribute
        x_train: Array,
        y_train: Array,
        x_test: Array | None = None,
        y_test: Array | None = None,
        *,
        weights: Array | None = None,
    ) -> None:
        self.id = id = checked_id(id)  # noqa: A001 - the name of the attribute
        self.x_train, self.y_train = _samples(f"client {id!r}, training data", x_train, y_train)
        if len(self.x_train) == 0:
            raise DataError(f"client {id!r} has no training data: leave it out, or give it some samples")
        if (x_test is None) != (y_test is None):
            raise DataError(f"client {id!r}: x_test and y_test belong together, one of them is missing")
        if x_test is None or y_test is None or np.shape(x_test)[:1] == np.shape(y_test)[:1] == (0,):
            self.x_test, self.y_test = self.x_train[:0], self.y_train[:0]
        else:
            self.x_test, self.y_test = _samples(f"client {id!r}, test data", x_test, y_test)
        self.weights = None if weights is None else _weights(f"client {id!r}", weights, len(self.x_train))
        for what, train, test in [
            ("inputs", self.x_train, self.x_test),
            ("labels", self.y_train, self.y_test),
        ]:
            if train.shape[1:] != test.shape[1:]:
                raise DataError(
                    f"client {id!r}: training {what} have shape {tuple(train.shape[1:])} a sample, "
                    f"test {what} {tuple(test.shape[1:])}"
                )
        if self.y_train.is_floating_point() != self.y_test.is_floating_point():
            raise DataError(
                f"client {id!r}: training labels are {_dtype(self.y_train)}, test labels {_dtype(self.y_test)}; "
                f"integers mean classes, floats mean regression"
            )

    @cached_property
    def classes(self) -> Tensor:
        """Its classes in ascending order: those of its training labels. None in regression."""
        if self.y_train.is_floating_point():
            return self.y_train.new_empty(0)
        if self.y_train.shape[0] <= _FEW:
            return torch.tensor(sorted(set(self.y_train.tolist())))
        found: Tensor = torch.unique(self.y_train)
        return found

    @property
    def mass(self) -> float:
        """How much it counts with weighting="samples": the sum of its weights, or how many samples it has."""
        return float(len(self.y_train)) if self.weights is None else float(self.weights.sum())

    def weights_of(self, rows: Tensor | npt.NDArray[np.int64]) -> Tensor | None:
        """Give the weights of some training samples, by their positions; None: all count alike."""
        return None if self.weights is None else self.weights[rows]

    def __repr__(self) -> str:
        return f"Client({self.id!r}, {len(self.x_train)} training and {len(self.x_test)} test samples)"


def checked_id(value: object) -> ClientId:
    """Check an id, a text or a whole number; NumPy's become Python's. True is neither, though it equals 1.

    >>> checked_id(np.int64(3)), checked_id("ward-3")
    (3, 'ward-3')
    """
    if type(value) is int:  # mostly, and asked for every client in every round
        return value
    if isinstance(value, str) and is_path(value):  # it is part of files' names
        return str(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise DataError(f"a client's id must be a text or a whole number, not {shortened(value)}")


def _samples(where: str, x: Array, y: Array) -> tuple[Tensor, Tensor]:
    inputs, labels = _tensor(where, x), _tensor(where, y)
    if inputs.dim() == 0 or labels.dim() == 0 or len(inputs) != len(labels):
        raise DataError(f"{where}: {_count(inputs)} inputs but {_count(labels)} labels")
    for what, tensor in [("input", inputs), ("label", labels)]:
        if tensor.is_floating_point() and not is_finite({what: tensor}):
            row, *place = (~tensor.isfinite()).nonzero()[0].tolist()
            at = f", column {place[0] if len(place) == 1 else tuple(place)}" if place else ""
            value = float(tensor[(row, *place)])
            raise DataError(
                f"{where}: the {what} in row {row}{at} is {value}; fill or drop such values first"
            )
    if inputs.is_floating_point():
        inputs = aligned(inputs)  # others are not multiplied as they are
    if labels.is_floating_point():
        return inputs, labels
    labels = labels.long()
    if labels.dim() != 1:
        raise DataError(
            f"{where}: class labels must be one number per sample, not of shape {tuple(labels.shape)}"
        )
    if (labels < 0).any():
        row = int((labels < 0).nonzero()[0])
        raise DataError(f"{where}: the label in row {row} is {int(labels[row])}; classes are numbered from 0")
    return inputs, labels


def _weights(where: str, values: Array, samples: int) -> Tensor:
    """Check the weights of training samples: numbers from 0 on, not all 0."""
    weights = _tensor(f"{where}, weights", values).double()
    if weights.shape != (samples,):
        raise DataError(
            f"{where}: weights of shape {tuple(weights.shape)}, but {samples} training samples: give one per sample"
        )
    if (wrong := ~(weights.isfinite() & (weights >= 0))).any():
        row = int(wrong.nonzero()[0])
        raise DataError(
            f"{where}: the weight in row {row} is {float(weights[row])}; give a number from 0 on, or drop the sample"
        )
    if not 0 < float(weights.sum()) < inf:
        raise DataError(
            f"{where}: its weights sum to {float(weights.sum()):g}, and must to a number above 0: give some training "
            f"sample a weight, or leave the client out"
        )
    return weights


def _tensor(where: str, values: Array) -> Tensor:
    if isinstance(values, Tensor):
        if values.is_complex():
            raise DataError(f"{where}: values of type {_dtype(values)} cannot be trained on; give numbers")
        return values.detach().cpu()
    if type(values) is np.ndarray and values.dtype in _AS_THEY_ARE and values.flags.carray:
        return torch.from_numpy(values)
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:  # rows of different lengths, or what is no array at all
        raise DataError(f"{where}: no array can be made of a {type(values).__name__}: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: values of type {array.dtype} cannot be trained on; give numbers")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def _count(tensor: Tensor) -> str:
    return str(len(tensor)) if tensor.dim() else "0-dimensional"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
