"""Whom to ask more often: the probabilities under which the next steps of a run vary least."""

from __future__ import annotations

from dataclasses import dataclass

from pflego.engines.local import LocalEngine
from pflego.federation.roster import ClientId
from pflego.federation.unequal import Independent, best_chances, variance
from pflego.runs.run import Run
from pflego.weights import norm


@dataclass(frozen=True)
class BestSampling:
    """Probabilities to take part, and what they save."""

    participation: Independent
    variance: float  # of the server's step under them
    equal: float  # the same if every client took part with probability r / I

    @property
    def saved(self) -> float:
        """The share of the variance that is saved."""
        return 1 - self.variance / self.equal if self.equal else 0.0


def best_sampling(run: Run, *, expected: float, least: float = 0.01) -> BestSampling:
    """Give the probabilities under which a step of a run varies least: in proportion to a_i |c_i|, clipped.

    c_i is what client i would send in the next round, so everybody works once, and nothing is stored. They are best
    where they were measured: measure again when the weights have moved far.

    Parameters
    ----------
    run
        Whose weights and states.
    expected
        r, the expected number of participants.
    least
        The smallest probability that anybody gets.
    """
    exchange = run.plan.exchange(run.algorithm, run.federation)
    engine = LocalEngine(
        run.problems, run.algorithm, run.states, run.plan.transforms, together=False, evaluate=False
    )
    now = exchange.round(len(run.history) + 1)
    turns = exchange.turns(now, range(len(run.federation)))
    outcomes = engine.run(turns, run.shared).outcomes
    added = run.algorithm.largest
    norms: dict[ClientId, float] = {
        outcome.client: turn.now.alpha
        * norm({name: t for name, t in (outcome.contribution or {}).items() if name not in added})
        for turn, outcome in zip(turns, outcomes, strict=True)
    }
    chances = best_chances(norms, expected=expected, least=least)
    alike = dict.fromkeys(chances, expected / len(norms))
    return BestSampling(Independent(chances), variance(norms, chances), variance(norms, alike))
