"""Who holds which data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflego.errors import UserError
from pflego.task import Classification, Regression, Task

if TYPE_CHECKING:
    from pflego.data.schema import Schema

ClientId: TypeAlias = str | int
Array: TypeAlias = npt.NDArray[np.generic] | Tensor


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

    uint8 inputs are taken as images and divided by 255 where they are used; they stay bytes until then.

    >>> Client("ward-3", np.zeros((4, 2)), np.array([7, 7, 3, 7])).classes
    tensor([3, 7])
    """

    def __init__(
        self,
        id: ClientId,
        x_train: Array,
        y_train: Array,
        x_test: Array | None = None,
        y_test: Array | None = None,
    ) -> None:
        self.id = id
        self.x_train, self.y_train = _samples(f"client {id!r}, training data", x_train, y_train)
        if len(self.x_train) == 0:
            raise UserError(f"client {id!r} has no training data: leave it out, or give it some samples")
        if (x_test is None) != (y_test is None):
            raise UserError(f"client {id!r}: x_test and y_test belong together, one of them is missing")
        if x_test is None or y_test is None or np.shape(x_test)[:1] == np.shape(y_test)[:1] == (0,):
            self.x_test, self.y_test = self.x_train[:0], self.y_train[:0]
        else:
            self.x_test, self.y_test = _samples(f"client {id!r}, test data", x_test, y_test)
        for what, train, test in [
            ("inputs", self.x_train, self.x_test),
            ("labels", self.y_train, self.y_test),
        ]:
            if train.shape[1:] != test.shape[1:]:
                raise UserError(
                    f"client {id!r}: training {what} have shape {tuple(train.shape[1:])} a sample, "
                    f"test {what} {tuple(test.shape[1:])}"
                )
        if self.y_train.is_floating_point() != self.y_test.is_floating_point():
            raise UserError(
                f"client {id!r}: training labels are {_dtype(self.y_train)}, test labels {_dtype(self.y_test)}; "
                f"integers mean classes, floats mean regression"
            )

    @cached_property
    def classes(self) -> Tensor:
        """Its classes in ascending order: those of its training labels. None in regression."""
        return (
            torch.unique(self.y_train) if not self.y_train.is_floating_point() else self.y_train.new_empty(0)
        )

    def __repr__(self) -> str:
        return f"Client({self.id!r}, {len(self.x_train)} training and {len(self.x_test)} test samples)"


class Federation:
    """The clients, and what the server may know of them: ids, sample counts, the kind of task.

    `Federation(clients)` holds them all. `Federation.lazy(...)` holds none: it asks for a client when it is
    needed, so that a million clients are a number and not a list of tensors.
    """

    def __init__(
        self,
        clients: Iterable[Client],
        *,
        source: Mapping[str, object] | None = None,
        schema: Schema | None = None,
    ) -> None:
        clients = list(clients)
        members = {client.id: client for client in clients}
        if not members:
            raise UserError("a federation needs at least one client")
        first = clients[0]
        for client in clients:
            if client.y_train.is_floating_point() != first.y_train.is_floating_point():
                raise UserError(
                    f"clients {first.id!r} and {client.id!r} have different tasks: one has integer labels "
                    f"(classes), the other float labels (regression)"
                )
            for what, mine, theirs in [
                ("inputs", client.x_train, first.x_train),
                ("labels", client.y_train, first.y_train),
            ]:
                if mine.shape[1:] != theirs.shape[1:]:
                    raise UserError(
                        f"clients {first.id!r} and {client.id!r} differ in the shape of their {what}: "
                        f"{tuple(theirs.shape[1:])} and {tuple(mine.shape[1:])} a sample"
                    )
        classes = None
        if not first.y_train.is_floating_point():
            classes = torch.unique(torch.cat([client.classes for client in clients])).tolist()
        self._set(
            [client.id for client in clients],
            members.__getitem__,
            sizes=np.array([len(client.x_train) for client in clients]),
            classes=classes,
            most_classes=None if classes is None else max(len(client.classes) for client in clients),
            source=source,
            schema=schema,
        )

    @classmethod
    def lazy(
        cls,
        ids: Sequence[ClientId],
        load: Callable[[ClientId], Client],
        *,
        sizes: npt.ArrayLike,
        classes: Sequence[int] | None,
        most_classes: int | None = None,
        source: Mapping[str, object] | None = None,
        schema: Schema | None = None,
    ) -> Federation:
        """Make a federation whose clients are loaded when they are needed.

        Parameters
        ----------
        ids
            The clients' names; `range(1_000_000)` will do.
        load
            Gives the client of an id.
        sizes
            How many training samples each has, in the order of ids.
        classes
            All classes of the federation, or None for regression.
        most_classes
            The most classes that one client holds; all of them if not said.
        source
            How the federation was made, for the record of a run.
        schema
            How raw values become its tensors, for new data to be read in the same way.
        """
        self = cls.__new__(cls)
        if most_classes is None and classes is not None:
            most_classes = len(classes)
        self._set(
            ids,
            load,
            sizes=np.asarray(sizes),
            classes=classes,
            most_classes=most_classes,
            source=source,
            schema=schema,
        )
        return self

    @classmethod
    def elsewhere(
        cls,
        ids: Sequence[ClientId],
        *,
        sizes: npt.ArrayLike,
        classes: Sequence[int] | None,
        outputs: int,
        most_classes: int | None = None,
        unit: float = 1.0,
        source: Mapping[str, object] | None = None,
        schema: Schema | None = None,
    ) -> Federation:
        """Make a federation whose data are not here and cannot be asked for: what a server knows of its clients.

        Parameters are those of `lazy`; `outputs` is how many outputs a model for everybody has, `unit` what 1 stands
        for in the targets of a regression without a schema.
        """

        def refuse(id: ClientId) -> Client:
            raise UserError(f"the data of client {id!r} are not on this machine")

        self = cls.lazy(
            ids,
            refuse,
            sizes=sizes,
            classes=classes,
            most_classes=most_classes,
            source=source,
            schema=schema,
        )
        self.remote = True
        self.outputs = outputs
        if classes is None and schema is None:
            self.task = Regression(unit)
        return self

    def _set(
        self,
        ids: Sequence[ClientId],
        load: Callable[[ClientId], Client],
        *,
        sizes: npt.NDArray[np.int64],
        classes: Sequence[int] | None,
        most_classes: int | None,
        source: Mapping[str, object] | None,
        schema: Schema | None,
    ) -> None:
        if len(ids) == 0 or sizes.shape != (len(ids),) or not (sizes > 0).all():
            raise UserError(f"a federation of {len(ids)} clients needs as many sample counts, each above 0")
        if not isinstance(ids, range) and len(names := Counter(map(str, ids))) < len(ids):
            twice = names.most_common(1)[0][0]
            raise UserError(f"two clients are called {twice!r}: every client needs an id of its own")
        self.ids = ids
        self.remote = False  # whether the data are elsewhere and cannot be looked at
        self.sizes = sizes
        self.most_classes = most_classes
        self.samples = int(sizes.sum())
        self.classes = None if classes is None else sorted(int(c) for c in classes)
        self.source = dict(source or {})
        self.schema = schema
        self._load = load
        self.task: Task = Classification()
        if classes is None:
            self.task = Regression() if schema is None else Regression(unit=schema.label_scale)

    @cached_property
    def outputs(self) -> int:
        """How many outputs a model for everybody has: one a class, or one a regression target."""
        return len(self.classes) if self.classes else self[0].y_train[:1].numel()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> Client:
        """Give the client at a position, 0 to len - 1, the order of `ids`."""
        return self._load(self.ids[position])

    def __iter__(self) -> Iterator[Client]:
        return (self[position] for position in range(len(self)))

    def client(self, id: ClientId) -> Client:
        """Give the client of an id."""
        return self[self.position(id)]

    def position(self, id: ClientId) -> int:
        """Find where a client stands in `ids`."""
        try:
            if isinstance(self.ids, range) and isinstance(id, int):
                return self.ids.index(id)
            return self._positions[id]
        except (KeyError, ValueError):
            raise UserError(f"no client is called {id!r}; the federation has {_some(self.ids)}") from None

    @cached_property
    def _positions(self) -> Mapping[ClientId, int]:
        return {id: position for position, id in enumerate(self.ids)}

    def fingerprint(self) -> str:
        """Digest the ids, the sample counts and the first client's data: tells one federation from another."""
        digest = blake2b(digest_size=12)
        names = repr(self.ids) if isinstance(self.ids, range) else "\0".join(map(str, self.ids))
        digest.update(names.encode())
        digest.update(self.sizes.astype(np.int64).tobytes())
        if self.remote:
            return digest.hexdigest()
        first = self[0]
        for tensor in (first.x_train, first.y_train, first.x_test, first.y_test):
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{len(self.classes)} classes"
        return f"Federation({len(self)} clients, {self.samples} training samples, {kind})"


def _samples(where: str, x: Array, y: Array) -> tuple[Tensor, Tensor]:
    inputs, labels = _tensor(where, x), _tensor(where, y)
    if inputs.dim() == 0 or labels.dim() == 0 or len(inputs) != len(labels):
        raise UserError(f"{where}: {_count(inputs)} inputs but {_count(labels)} labels")
    for what, tensor in [("input", inputs), ("label", labels)]:
        if tensor.is_floating_point() and not (finite := tensor.isfinite()).all():
            row, *place = (~finite).nonzero()[0].tolist()
            at = f", column {place[0] if len(place) == 1 else tuple(place)}" if place else ""
            value = float(tensor[(row, *place)])
            raise UserError(
                f"{where}: the {what} in row {row}{at} is {value}; fill or drop such values first"
            )
    if labels.is_floating_point():
        return inputs, labels
    labels = labels.long()
    if labels.dim() != 1:
        raise UserError(
            f"{where}: class labels must be one number a sample, not of shape {tuple(labels.shape)}"
        )
    if (labels < 0).any():
        row = int((labels < 0).nonzero()[0])
        raise UserError(f"{where}: the label in row {row} is {int(labels[row])}; classes are numbered from 0")
    return inputs, labels


def _tensor(where: str, values: Array) -> Tensor:
    if isinstance(values, Tensor):
        if values.is_complex():
            raise UserError(f"{where}: values of type {_dtype(values)} cannot be trained on; give numbers")
        return values.detach().cpu()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{where}: values of type {array.dtype} cannot be trained on; give numbers")
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


def _some(ids: Sequence[ClientId]) -> str:
    shown = ", ".join(repr(id) for id in list(ids[:5]))
    return shown if len(ids) <= 5 else f"{shown}, ... ({len(ids)} in all)"
