"""What an algorithm is: what a client does in a round, and what the server does with the replies.

    shared --> client_update(shared, state_i, data_i) --> (state_i', message_i) --> server_update --> shared'

Both are functions of their arguments. An algorithm knows no engine, no file and no progress bar; its fields
are its hyperparameters, checked when it is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from pflego.algorithms.newcomer import fit_head
from pflego.federation import ClientId
from pflego.heads import is_head
from pflego.model import Model
from pflego.problem import Labels, Problem
from pflego.weights import Weights

Missing: TypeAlias = Literal["zero", "renormalise"]


@dataclass(frozen=True)
class Round:
    """What everybody knows of a round."""

    number: int  # t, from 1
    clients: int  # I
    expected: float  # r, the expected number of participants
    samples: int  # the sum of all N_j
    selected: int  # how many were asked to take part
    seed: int = 0
    missing: Missing = "zero"

    @property
    def scale(self) -> float:
        """I/r, the inverse of a client's chance to take part."""
        return self.clients / self.expected

    def alpha(self, samples: int) -> float:
        """alpha_i = N_i / sum_j N_j, over the whole federation."""
        return samples / self.samples

    def shares(self, samples: Sequence[int]) -> list[float]:
        """The factors of the replies that arrived, given their sample counts: I/r alpha_i.

        Where some are missing, the rest stay as they are (missing="zero": a missing reply counts as zero) or are
        scaled to sum to one (missing="renormalise").
        """
        shares = [self.scale * self.alpha(n) for n in samples]
        if self.missing == "zero" or len(samples) == self.selected:
            return shares
        return [share / sum(shares) for share in shares]


@dataclass(frozen=True)
class Update:
    """What a client has done: what it keeps, and what it sends."""

    state: Weights
    message: Weights
    loss: float | None = None  # after the last step; None: not known without another pass
    model: Weights | None = None  # its model right after its steps, where `personal` would not give it
    fallbacks: int = 0  # 1 if its head steps went uphill and it fell back


@dataclass(frozen=True)
class Reply:
    """What the server receives from a client, or from several that worked together: then `client` is the first."""

    client: ClientId
    samples: int
    message: Weights


@dataclass(frozen=True)
class Algorithm(ABC):
    """The interface of a method. What is not overridden does what most methods do."""

    def __init_subclass__(cls) -> None:
        """A method that changes what clients send, or what is made of it, does not inherit a shortcut for it."""
        if vars(cls).keys() & {"client_update", "server_update"} and "together" not in vars(cls):
            cls.together = Algorithm.together  # type: ignore[method-assign]
        if "server_update" in vars(cls) and "linear" not in vars(cls):
            cls.linear = Algorithm.linear  # type: ignore[method-assign]

    @property
    def name(self) -> str:
        """Its name in settings and on the command line."""
        return type(self).__name__.lower()

    @property
    def label_space(self) -> Labels:
        """What the outputs of its models stand for: each client's own classes, unless it shares a head."""
        return "own"

    @property
    def linear(self) -> bool:
        """Whether the server asks no more of messages than sum_i N_i message_i: one may then stand for several.

        Such messages name shared weights only. Where processes train together, they add up what their clients send,
        instead of passing on every message.
        """
        return False

    def settings(self) -> dict[str, object]:
        """Give its hyperparameters, by the names of its arguments."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: getattr(v, "__qualname__", repr(v)) if callable(v) else v for name, v in values.items()}

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """Give the server's first weights: theta_0. `outputs` are those of the whole federation."""
        return model.weights()

    @abstractmethod
    def init_state(self, problem: Problem, seed: int) -> Weights:
        """Give a client's state the first time it is visited."""

    @abstractmethod
    def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Do a client's work in a round."""

    def together(
        self, round: Round, shared: Weights, states: Sequence[Weights], problems: Sequence[Problem]
    ) -> tuple[list[Update], Weights] | None:
        """Do the work of several small clients at once, where a method can, for the sake of speed.

        Gives what each has done, with empty messages, and the one message that stands for theirs,
        sum_i N_i message_i / sum_i N_i. None: this method works with one client at a time.
        """
        return None

    @abstractmethod
    def server_update(
        self, round: Round, shared: Weights, server: Weights, replies: Sequence[Reply]
    ) -> tuple[Weights, Weights]:
        """Turn the replies, in the order of the federation, into new shared weights and server state."""

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Give the weights of a client's own model: the shared ones, overlaid with its own."""
        return {**shared, **state}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Give a client's state made ready for the present shared weights, as it would be before use."""
        return state

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Give the state of a client that comes when the others have trained, from its first: made ready for use.

        A head is fitted to the shared backbone, in so many steps, or until it is done if none are said; any other
        state goes the way of `adapt`.
        """
        if state and all(is_head(name) for name in state):
            return fit_head(problem, state, problem.forward(shared).features, steps=steps)
        return self.adapt(shared, state, problem)

    def warn(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> str | None:
        """Say what looks wrong before the first round, seen from one of its clients."""
        return None
