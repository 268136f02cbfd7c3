"""Where client work runs: what playing a round asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from pflego.algorithms.base import Algorithm
from pflego.exchange.metrics import Metrics
from pflego.exchange.round import Round
from pflego.federation.roster import ClientId
from pflego.learning.evaluation import Score
from pflego.learning.problems import Problems
from pflego.weights import Weights

if TYPE_CHECKING:
    from pflego.federation.remote import RemoteFederation  # the server's


@dataclass(frozen=True)
class Turn:
    """What one client of a cohort is asked to do."""

    position: int  # of the client in the federation
    now: Round  # as this client is told of it
    weight: float  # w_i of its contribution
    answer: Weights = field(
        default_factory=dict
    )  # what the server has for it alone, beside the shared weights


@dataclass(frozen=True)
class Outcome:
    """What came of one client's work."""

    position: int
    client: ClientId
    samples: int
    state: Weights
    metrics: Metrics
    contribution: Weights | None  # None: it is in a sum with others'
    bytes_up: int
    finite: bool  # fit for use: no infinity and no NaN in what was sent, kept or measured
    packed: Weights | None = None  # what stands for the contribution on the wire, where that is compressed

    @property
    def sent(self) -> Weights:
        """What is on the wire."""
        return (self.contribution or {}) if self.packed is None else self.packed


@dataclass(frozen=True)
class Work:
    """What came of a cohort's work."""

    outcomes: list[Outcome]  # in the order of the federation; a client without one did not answer
    sums: list[Weights] = field(
        default_factory=list
    )  # weighted, of contributions that no outcome has by itself
    seconds: float = 0.0  # of the busiest worker, evaluation left out
    noised: bool = (
        False  # whether clients have clipped what is in the sums, and added the noise of privacy to it
    )


@dataclass(frozen=True)
class Gathered:
    """What has arrived at the server, from one process's clients or from all."""

    parts: Mapping[
        int, tuple[float, Weights]
    ]  # by position: weight and contribution, where a rule looks at each
    total: Weights  # the weighted sum, where that is all that is asked for
    largest: Weights  # name by name
    weight: float  # the sum of w_i
    answered: int  # clients that have an outcome
    rejected: Sequence[ClientId]  # those of them whose outcome is not fit for use
    arrived: int  # of the others, those whose contribution arrived
    heard: Sequence[ClientId]  # who they are
    losses: Mapping[
        int, float
    ]  # theirs where the gradient was taken, by position, where an objective needs them
    metrics: Metrics
    seconds: float
    alone: Weights = field(default_factory=dict)  # what is not combined, by name and client


@runtime_checkable
class Engine(Protocol):
    """Lets clients work, here or elsewhere."""

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        """Let every client of a cohort do its work."""
        ...

    def pool(self, gathered: Gathered) -> Gathered:
        """Put together what has arrived in all processes, the same for each of them; alone, that is what is given."""
        ...

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        """Try every client's model on its own test data, in the order of the federation.

        adapt: each client first makes its state ready for the shared weights; nothing is stored.
        """
        ...


@runtime_checkable
class Changing(Protocol):
    """An engine whose clients come and go while a run goes on."""

    def settle(
        self, number: int, shared: Weights, check: Callable[[RemoteFederation], None]
    ) -> RemoteFederation:
        """Decide who is a member in a round, before it is played; newcomers are ready for it then.

        check: refuses a federation that the run cannot go on with.
        """
        ...


@runtime_checkable
class Rehearsing(Protocol):
    """An engine that knows what a contribution looks like before any has arrived."""

    def forms(self) -> Sequence[Weights]:
        """Give a contribution for each exchange of a round; only names, shapes and types count."""
        ...


EngineMaker: TypeAlias = Callable[[Problems, Algorithm, Mapping[ClientId, Weights]], Engine]
