"""A round of one client that nobody hears of: what is received and sent in it looks like in any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pflego.algorithms.base import Algorithm
from pflego.engines.base import Engine, Gathered, Turn, Work
from pflego.engines.play import Exchange
from pflego.exchange.metrics import Metrics
from pflego.federation.roster import ClientId
from pflego.learning.evaluation import Score
from pflego.learning.problems import Problems
from pflego.weights import Weights, to


@dataclass(frozen=True)
class Rehearsed:
    """What one exchange looks like."""

    received: Weights
    contribution: Weights
    sent: Weights  # what stands for it on the wire
    metrics: Metrics
    state: Weights


@dataclass
class _Recorder:
    """An engine that notes what is received and sent."""

    local: Engine
    seen: list[Rehearsed] = field(default_factory=list)

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        work = self.local.run(turns, shared)
        [turn], [outcome] = turns, work.outcomes
        received = {**shared, **turn.answer}
        contribution = outcome.contribution or {}
        self.seen.append(Rehearsed(received, contribution, outcome.sent, outcome.metrics, outcome.state))
        return work

    def pool(self, gathered: Gathered) -> Gathered:
        return gathered

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        raise NotImplementedError


def rehearse(
    engine: Engine,
    problems: Problems,
    algorithm: Algorithm,
    states: dict[ClientId, Weights],
    *,
    seed: int,
) -> list[Rehearsed]:
    """Play a round with the first client; give what was received and sent in each of its exchanges.

    states: those that the engine has, of the first client alone; they move with the round.
    """
    shared = algorithm.init_shared(problems.model, problems.outputs, seed)
    recorder = _Recorder(engine)
    exchange = Exchange.of(algorithm, problems.federation.masses, seed=seed)
    ids = problems.federation.ids
    exchange.play(recorder, 1, to(shared, problems.device), {}, [0], ids=ids, keep=states.update)
    return recorder.seen
