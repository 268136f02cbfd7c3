"""A federation whose data are not here: what a server knows of its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy.typing as npt
from torch import Tensor

from pflego.errors import DataError
from pflego.federation.client import Client, ClientId
from pflego.federation.roster import Federation
from pflego.learning.task import Regression

if TYPE_CHECKING:
    from pflego.data.schema import Schema


class NotHereError(DataError):
    """Data that are on another machine."""


class RemoteFederation(Federation):
    """Clients by their ids and sample counts; their data cannot be asked for.

    Parameters
    ----------
    ids, sizes, classes, most_classes, source, schema
        As in `Federation.lazy`.
    outputs
        How many outputs a model for everybody has.
    unit
        What 1 stands for in the targets of a regression without a schema.
    """

    def __init__(
        self,
        ids: Sequence[ClientId],
        *,
        sizes: npt.ArrayLike,
        classes: Sequence[int] | None,
        outputs: int,
        most_classes: int | None = None,
        unit: float = 1.0,
        source: Mapping[str, object] | None = None,
        schema: Schema | None = None,
    ) -> None:
        self._describe(
            ids,
            _refuse,
            sizes=sizes,
            classes=classes,
            most_classes=most_classes,
            source=source,
            schema=schema,
        )
        self.outputs = outputs
        if classes is None and schema is None:
            self.task = Regression(unit)

    def some_inputs(self, samples: int) -> Tensor | None:
        """Return None: no data are here."""
        return None

    def _add_data(self, digest: blake2b) -> None:
        """Add nothing: no data are here."""


def _refuse(client: ClientId) -> Client:
    raise NotHereError(f"the data of client {client!r} are not on this machine")
