"""The clients' own states: what each keeps between rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from pflego.federation.client import checked_id
from pflego.federation.roster import ClientId, Federation
from pflego.weights import Weights


class States(Mapping[ClientId, Weights]):
    """One state per client, in memory or where it was stored.

    Parameters
    ----------
    federation
        Whose clients they are.
    first
        Gives the first state of a client that was never visited, when it is asked for.
    stored
        Gives the state of a client from disk, None if there is none.
    in_memory
        Whether states stay in memory once they are on disk.
    """

    def __init__(
        self,
        federation: Federation,
        first: Callable[[ClientId], Weights],
        stored: Callable[[ClientId], Weights | None] | None = None,
        *,
        in_memory: bool = True,
    ) -> None:
        self._federation = federation
        self._first = first
        self._stored = stored
        self._in_memory = in_memory
        self._held: dict[ClientId, Weights] = {}
        self._lock = threading.Lock()

    def __getitem__(self, client_id: ClientId) -> Weights:
        if (own := checked_id(client_id)) in self._held:
            return self._held[own]
        with self._lock:  # neither a file nor a random draw is made for two threads at once
            state = None if self._stored is None else self._stored(client_id)
            return self._first(client_id) if state is None else state

    def update(self, states: Mapping[ClientId, Weights]) -> None:
        """Replace the states of the clients that have changed."""
        self._held.update(states)

    def enlarge(self, federation: Federation) -> None:
        """Take note of a federation with more clients, whose states are given."""
        self._federation = federation

    def written(self) -> None:
        """Note that all states are on disk now: where that is their place they need no memory."""
        if not self._in_memory:
            self._held.clear()

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._federation.ids)

    def __len__(self) -> int:
        return len(self._federation)
