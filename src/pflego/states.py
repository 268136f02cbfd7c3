"""The clients' own states: what each keeps between rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pflego.federation import ClientId, Federation
from pflego.weights import Weights


class States(Mapping[ClientId, Weights]):
    """A state a client. One that was never visited has its first state, made when it is asked for."""

    def __init__(self, federation: Federation, first: Callable[[ClientId], Weights]) -> None:
        self._federation = federation
        self._first = first
        self._visited: dict[ClientId, Weights] = {}

    def __getitem__(self, id: ClientId) -> Weights:
        return self._visited[id] if id in self._visited else self._first(id)

    def update(self, states: Mapping[ClientId, Weights]) -> None:
        """Replace the states of the clients that have changed."""
        self._visited.update(states)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._federation.ids)

    def __len__(self) -> int:
        return len(self._federation)
