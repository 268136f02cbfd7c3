"""Who holds which data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from numbers import Integral
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflego.errors import DataError, SettingError, calling, named, shortened
from pflego.federation.client import Array, Client, ClientId, checked_id
from pflego.learning.task import Classification, Regression, Task

if TYPE_CHECKING:
    from pflego.data.schema import Schema

Masses: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float64]  # sample counts, or sums of weights


class Federation:
    """The clients, and what the server may know of them: ids, sample counts, the kind of task.

    `masses` are what clients count by with weighting="samples": the sums of their weights where `weighted`, sample
    counts otherwise. Where some clients have weights and others none, each sample of the others has weight 1.

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
        clients = _members(clients)
        members = {client.id: client for client in clients}
        if not members:
            raise DataError("a federation needs at least one client")
        first = clients[0]
        for client in clients:
            if client.y_train.is_floating_point() != first.y_train.is_floating_point():
                raise DataError(
                    f"clients {first.id!r} and {client.id!r} have different tasks: one has integer labels "
                    f"(classes), the other float labels (regression)"
                )
            for what, mine, theirs in [
                ("inputs", client.x_train, first.x_train),
                ("labels", client.y_train, first.y_train),
            ]:
                if mine.shape[1:] != theirs.shape[1:]:
                    raise DataError(
                        f"clients {first.id!r} and {client.id!r} differ in the shape of their {what}: "
                        f"{tuple(theirs.shape[1:])} and {tuple(mine.shape[1:])} a sample"
                    )
            if (client.x_train.dtype == torch.uint8) != (first.x_train.dtype == torch.uint8):
                raise _mixed(client)
        classes = None
        if not first.y_train.is_floating_point():
            classes = torch.unique(torch.cat([client.classes for client in clients])).tolist()
        self._describe(
            [client.id for client in clients],
            members.__getitem__,
            sizes=np.array([len(client.x_train) for client in clients]),
            masses=[client.mass for client in clients]
            if any(c.weights is not None for c in clients)
            else None,
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
        masses: npt.ArrayLike | None = None,
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
            The most classes that one client holds; all of them if not given.
        masses
            The sum of each client's weights, in the order of ids, where samples have weights.
        source
            How the federation was made, for the record of a run.
        schema
            How raw values become its tensors, for new data to be read in the same way.
        """
        self = cls.__new__(cls)
        self._describe(
            ids,
            load,
            sizes=sizes,
            masses=masses,
            classes=classes,
            most_classes=most_classes,
            source=source,
            schema=schema,
        )
        return self

    def _describe(
        self,
        ids: Sequence[ClientId],
        load: Callable[[ClientId], Client],
        *,
        sizes: npt.ArrayLike,
        masses: npt.ArrayLike | None,
        classes: Sequence[int] | None,
        most_classes: int | None,
        source: Mapping[str, object] | None,
        schema: Schema | None,
    ) -> None:
        try:
            sizes = np.asarray(sizes)
            count = len(ids)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"ids must be a list of clients' names, and sizes a number for each: {error}"
            ) from error
        if not callable(load):
            raise DataError(
                f"load must be a function from a client's id to its Client, not {shortened(load)}"
            )
        if classes is not None:
            classes = _class_ids(classes)
        if most_classes is None and classes is not None:
            most_classes = len(classes)
        if count == 0 or sizes.shape != (count,) or sizes.dtype.kind not in "iu" or not (sizes > 0).all():
            raise DataError(
                f"a federation of {count} clients needs as many sample counts, whole numbers above 0"
            )
        if not isinstance(ids, range):
            if isinstance(ids, str | bytes):
                raise DataError(f"ids must be a list of clients' names, not the text {ids!r}")
            ids = [checked_id(one) for one in ids]
            if len(names := Counter(map(str, ids))) < count:
                twice = names.most_common(1)[0][0]
                raise DataError(f"two clients are called {twice!r}: every client needs an id of its own")
        self.ids = ids
        self.sizes = sizes
        self.weighted = masses is not None
        self.masses: Masses = sizes if masses is None else _checked_masses(masses, count)
        self.most_classes = most_classes
        self.samples = int(sizes.sum())
        self.classes = None if classes is None else sorted(classes)
        self.source = dict(source or {})
        self.schema = schema
        self._load = load
        self._of_bytes: bool | None = None  # whether inputs are bytes; None: nobody was looked at yet
        self.task: Task = Classification()
        if classes is None:
            self.task = Regression() if schema is None else Regression(unit=schema.label_scale)

    @cached_property
    def outputs(self) -> int:
        """How many outputs a model for everybody has: one per class, or one per regression target."""
        return len(self.classes) if self.classes else self[0].y_train[:1].numel()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> Client:
        """Give the client at a position, 0 to len - 1, the order of `ids`; while somebody has it, no other is made."""
        if type(position) is int and (held := self._held.get(position)) is not None:
            return held
        if isinstance(position, bool) or not isinstance(position, Integral):
            raise DataError(f"clients are at positions 0 to {len(self) - 1}, not at {shortened(position)}")
        try:
            client = self._load(self.ids[position])
        except Exception:
            with calling(f"{named(self._load)}({self.ids[position]!r}) failed", DataError):
                raise
        if not isinstance(client, Client):
            raise DataError(f"load({self.ids[position]!r}) must give a Client, not {shortened(client)}")
        if len(client.x_train) != self.sizes[position]:
            raise DataError(
                f"client {client.id!r} has {len(client.x_train)} training samples, but the federation was told of "
                f"{int(self.sizes[position])}: sizes decide how much a client counts"
            )
        told = float(self.masses[position])
        if (client.weights is not None or self.weighted) and abs(client.mass - told) > 1e-6 * told:
            raise DataError(
                f"client {client.id!r} has weights that sum to {client.mass:g}, but the federation was told of "
                f"{told:g}: give Federation.lazy masses=, the sum of each client's weights"
            )
        if self._of_bytes is None:
            self._of_bytes = client.x_train.dtype == torch.uint8
        elif self._of_bytes != (client.x_train.dtype == torch.uint8):
            raise _mixed(client)
        self._held[int(position)] = client
        return client

    @cached_property
    def _held(self) -> WeakValueDictionary[int, Client]:
        return WeakValueDictionary()

    def __getstate__(self) -> dict[str, object]:
        """Leave out who is held here: elsewhere clients are made again."""
        return {name: value for name, value in self.__dict__.items() if name != "_held"}

    def some_inputs(self, samples: int) -> Tensor | None:
        """Give a few inputs to try a backbone on; None where there are none at hand."""
        return self[0].x_train[:samples]

    def __iter__(self) -> Iterator[Client]:
        return (self[position] for position in range(len(self)))

    def client(self, client_id: ClientId) -> Client:
        """Give the client of an id."""
        return self[self.position(client_id)]

    def position(self, client_id: ClientId) -> int:
        """Find where a client stands in `ids`."""
        own = checked_id(client_id)
        try:
            if isinstance(self.ids, range) and isinstance(own, int):
                return self.ids.index(own)
            return self._positions[own]
        except (KeyError, ValueError):
            raise DataError(f"no client is called {own!r}; the federation has {_some(self.ids)}") from None

    @cached_property
    def _positions(self) -> Mapping[ClientId, int]:
        return {client_id: position for position, client_id in enumerate(self.ids)}

    def fingerprint(self) -> str:
        """Digest the ids, the sample counts and the first client's data: tells one federation from another."""
        digest = blake2b(digest_size=12)
        ids, sizes = self._founders()
        names = repr(ids) if isinstance(ids, range) else "\0".join(map(str, ids))
        digest.update(names.encode())
        digest.update(sizes.astype(np.int64).tobytes())
        self._add_data(digest)
        return digest.hexdigest()

    def _founders(self) -> tuple[Sequence[ClientId], npt.NDArray[np.int64]]:
        """Give the ids and sample counts of those who began it: everybody's."""
        return self.ids, self.sizes

    def _add_data(self, digest: blake2b) -> None:
        first = self[0]
        tensors = [first.x_train, first.y_train, first.x_test, first.y_test]
        if self.weighted:
            tensors += [torch.tensor(self.masses), *([] if first.weights is None else [first.weights])]
        for tensor in tensors:
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{len(self.classes)} classes"
        return f"Federation({len(self)} clients, {self.samples} training samples, {kind})"


def check_federation(value: object) -> None:
    """Refuse what is no federation."""
    if not isinstance(value, Federation):
        raise SettingError(
            f"federation must be a pflego.Federation, as pflego.load gives it, not {shortened(value)}"
        )


def _members(clients: object) -> list[Client]:
    """List the clients of a federation; refuse what is none."""
    if not isinstance(clients, Iterable):
        raise DataError(f"a federation is made of a list of clients, not of {shortened(clients)}")
    members = list(clients)
    for one in members:
        if not isinstance(one, Client):
            raise DataError(f"a federation is made of clients, Client(id, x, y), not of {shortened(one)}")
    return members


def _checked_masses(masses: npt.ArrayLike, clients: int) -> npt.NDArray[np.float64]:
    try:
        found = np.asarray(masses, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"masses must be a number for each client: {error}") from error
    if found.shape != (clients,) or not (np.isfinite(found) & (found > 0)).all():
        raise DataError(f"a federation of {clients} clients needs as many masses, numbers above 0")
    return found


def _class_ids(classes: object) -> list[int]:
    if not isinstance(classes, Iterable) or isinstance(classes, str | bytes):
        raise DataError(f"classes must be a list of class ids, not {shortened(classes)}")
    found = list(classes)
    for one in found:
        if isinstance(one, bool) or not isinstance(one, Integral) or one < 0:
            raise DataError(f"classes are numbered from 0: {shortened(one)} is none")
    return [int(one) for one in found]


def _mixed(client: Client) -> DataError:
    return DataError(
        f"client {client.id!r} has inputs of type {client.x_train.dtype}, and others do not: bytes are divided by 255 "
        f"and other numbers are not, so one model cannot take both; convert them all alike"
    )


def _some(ids: Sequence[ClientId]) -> str:
    shown = ", ".join(repr(client_id) for client_id in list(ids[:5]))
    return shown if len(ids) <= 5 else f"{shown}, ... ({len(ids)} in all)"


__all__ = ["Array", "Client", "ClientId", "Federation", "Masses", "check_federation"]
