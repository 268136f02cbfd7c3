"""A federation whose data are not here: what a server knows of its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pflego.errors import DataError
from pflego.federation.client import Client, ClientId
from pflego.federation.population import Population
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
    ids, sizes, classes, most_classes, masses, source, schema
        As in `Federation.lazy`.
    outputs
        How many outputs a model for everybody has.
    unit
        What 1 stands for in the targets of a regression without a schema.
    population
        Who was a member when, so far; None: everybody, all along.
    awaited
        The ids of clients that may come later, of which nothing is known yet.
    began
        The sample counts of the first clients, those who began it, as they said: it is known by them, whoever comes
        later. None: all of them, and `sizes`.
    """

    def __init__(
        self,
        ids: Sequence[ClientId],
        *,
        sizes: npt.ArrayLike,
        classes: Sequence[int] | None,
        outputs: int,
        most_classes: int | None = None,
        masses: npt.ArrayLike | None = None,
        unit: float = 1.0,
        population: Population | None = None,
        awaited: Sequence[ClientId] = (),
        began: npt.ArrayLike | None = None,
        source: Mapping[str, object] | None = None,
        schema: Schema | None = None,
    ) -> None:
        self._describe(
            ids,
            _refuse,
            sizes=sizes,
            masses=masses,
            classes=classes,
            most_classes=most_classes,
            source=source,
            schema=schema,
        )
        self.outputs = outputs
        self.population, self.awaited = population, awaited
        self._began = self.sizes if began is None else np.asarray(began, dtype=np.int64)
        if classes is None and schema is None:
            self.task = Regression(unit)

    def some_inputs(self, samples: int) -> Tensor | None:
        """Return None: no data are here."""
        return None

    def _founders(self) -> tuple[Sequence[ClientId], npt.NDArray[np.int64]]:
        """Give those who began it."""
        return self.ids[: len(self._began)], self._began

    def _add_data(self, digest: blake2b) -> None:
        """Add nothing: no data are here."""


def _refuse(client: ClientId) -> Client:
    raise NotHereError(f"the data of client {client!r} are not on this machine")
