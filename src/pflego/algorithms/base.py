"""What an algorithm is: what a client does in a round, and what the server does with the replies.

    shared --> client_update(shared, state_i, data_i) --> (state_i', message_i) --> server_update --> shared'

Both are functions of their arguments. An algorithm knows no engine, no file and no progress bar; its fields
are its hyperparameters, checked when it is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields

from pflego.federation import ClientId
from pflego.model import Model
from pflego.problem import Problem
from pflego.weights import Weights


@dataclass(frozen=True)
class Round:
    """What everybody knows of a round."""

    number: int  # t, from 1
    clients: int  # I
    expected: float  # r, the expected number of participants
    samples: int  # the sum of all N_j
    seed: int

    @property
    def scale(self) -> float:
        """I/r, the inverse of a client's chance to take part."""
        return self.clients / self.expected

    def alpha(self, samples: int) -> float:
        """alpha_i = N_i / sum_j N_j, over the whole federation."""
        return samples / self.samples


@dataclass(frozen=True)
class Update:
    """What a client has done: what it keeps, and what it sends."""

    state: Weights
    message: Weights
    loss: float | None = None  # after the last step; None: not known without another pass
    model: Weights | None = None  # its model right after its steps, where that is not shared + state


@dataclass(frozen=True)
class Reply:
    """What the server receives from a client."""

    client: ClientId
    samples: int
    message: Weights


@dataclass(frozen=True)
class Algorithm(ABC):
    """The interface of a method. What is not overridden does what most methods do."""

    @property
    def name(self) -> str:
        """Its name in settings and on the command line."""
        return type(self).__name__.lower()

    def settings(self) -> dict[str, object]:
        """Give its hyperparameters, by the names of its arguments."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: getattr(v, "__qualname__", repr(v)) if callable(v) else v for name, v in values.items()}

    def init_shared(self, model: Model) -> Weights:
        """Give the server's first weights: theta_0."""
        return model.weights()

    @abstractmethod
    def init_state(self, problem: Problem, seed: int) -> Weights:
        """Give a client's state the first time it is visited."""

    @abstractmethod
    def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Do a client's work in a round."""

    @abstractmethod
    def server_update(
        self, round: Round, shared: Weights, server: Weights, replies: Sequence[Reply]
    ) -> tuple[Weights, Weights]:
        """Turn the replies, in the order of the federation, into new shared weights and server state."""

    def personal(self, shared: Weights, state: Weights) -> Weights:
        """Give the weights of a client's own model: the shared ones, overlaid with its own."""
        return {**shared, **state}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Give a client's state made ready for the present shared weights, as it would be before use."""
        return state
