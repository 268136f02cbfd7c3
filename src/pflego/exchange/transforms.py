"""What happens to a contribution on the client, before it is sent: a function of it and of nobody else's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pflego.declaration import Positive, check_fields
from pflego.exchange.round import Round
from pflego.federation.roster import ClientId
from pflego.weights import Weights, norm


class Transform(Protocol):
    """A link of the chain between a client's work and the wire."""

    def __call__(self, contribution: Weights, now: Round, client: ClientId) -> Weights:
        """Give what is sent instead. Randomness comes from (now.seed, a purpose, now.number, client)."""
        ...


@dataclass(frozen=True)
class Clip:
    """Shorten a contribution whose Euclidean norm, all tensors together, is above a limit.

    Parameters
    ----------
    limit
        The largest norm that is sent.
    """

    limit: Positive

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, contribution: Weights, now: Round, client: ClientId) -> Weights:
        """c min(1, limit / |c|)."""
        size = norm(contribution)
        if size <= self.limit:
            return contribution
        return {name: tensor * (self.limit / size) for name, tensor in contribution.items()}
