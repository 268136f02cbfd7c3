"""A round: clients work, what they send is weighted and combined, the server steps.

Whoever plays a round does it here: training, the cost of one, learning alone, the rehearsal of a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pflego.algorithms.base import Algorithm
from pflego.engines.base import Engine, Gathered, Outcome, Rehearsing, Turn, Work
from pflego.engines.hostile import spoiled
from pflego.errors import SettingError
from pflego.exchange.aggregation import Aggregation, Mean
from pflego.exchange.liars import Liars
from pflego.exchange.metrics import Metric, combine, largest, total
from pflego.exchange.objective import JOINT_LOSS, Objective
from pflego.exchange.privacy import ClientPrivacy, Guard, key_of
from pflego.exchange.round import Round, of_client
from pflego.exchange.transforms import Transform
from pflego.exchange.weighting import (
    WEIGHTINGS,
    Missing,
    Standing,
    WeightingName,
    cohort_weights,
    correction,
)
from pflego.federation.roster import ClientId, Masses
from pflego.weights import (
    Weights,
    elementwise_largest,
    is_finite,
    nbytes,
    of_prefix,
    weighted_sum,
    with_prefix,
)

SLOWEST = "slowest"  # seconds until the last reply was there
_OBJECTIVE = "objective/"  # before the names of what the server keeps for it
_PRIVACY = "privacy/"  # the same, for privacy
_OF_WORK = (
    "forward_passes",
    "backward_passes",
    "trunk_passes",
    "bytes_up",
    "bytes_down",
)  # add up over the exchanges of a round


@dataclass(frozen=True)
class Played:
    """What a round came to."""

    shared: Weights
    server: Weights
    states: dict[ClientId, Weights]  # those that changed
    metrics: Mapping[str, Metric]
    missing: int  # clients that were asked and whose contribution did not arrive
    silent: Sequence[ClientId]  # those clients
    rejected: Sequence[ClientId]  # clients whose work was not finite
    refused: bool  # whether the server's own step was not finite, and so not taken
    arrived: int
    seconds: float  # of clients and server


@dataclass(frozen=True)
class Exchange:
    """How a method's clients and server speak to each other.

    Parameters
    ----------
    algorithm
        What clients and server do.
    standing
        Gives how much every client counts in a round, by the round's number.
    aggregation
        How contributions are combined.
    missing
        What happens where some do not arrive.
    transforms
        What happens to a contribution before it is sent.
    seed
        Decides every random draw.
    objective
        What is minimised; None: the mean loss.
    privacy
        How far contributions are clipped and how much noise their sum gets; None: neither.
    noise_key
        What that noise is a function of; None: the seed.
    liars
        Clients that send something else than their work, in a simulation.
    """

    algorithm: Algorithm
    standing: Callable[[int], Standing]
    aggregation: Aggregation = Mean()
    missing: Missing = "zero"
    transforms: Sequence[Transform] = ()
    seed: int = 0
    objective: Objective | None = None
    privacy: ClientPrivacy | None = None
    noise_key: bytes | None = None
    liars: Liars | None = None

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        masses: Masses,
        *,
        expected: float | None = None,
        weighting: WeightingName = "samples",
        aggregation: Aggregation = Mean(),
        missing: Missing = "zero",
        transforms: Sequence[Transform] = (),
        seed: int = 0,
    ) -> Exchange:
        """Make the exchange of clients with these sample counts, or sums of weights, the same in every round.

        r is everybody if not given.
        """
        scale = 1.0 if expected is None else len(masses) / expected
        always = Standing(WEIGHTINGS[weighting](masses), np.full(len(masses), scale))
        return cls(algorithm, lambda number: always, aggregation, missing, transforms, seed)

    @property
    def sums(self) -> bool:
        """Whether contributions may be added up before they are sent: all that is asked for is a sum."""
        as_they_are = not self.transforms and self.privacy is None and self.liars is None
        return self.aggregation.additive and as_they_are

    def round(self, number: int, exchange: int = 0) -> Round:
        """Return what the server knows of a round."""
        largest = self.standing(number).largest_scale
        return Round(number, scale=largest, largest_scale=largest, seed=self.seed, exchange=exchange)

    def turns(self, now: Round, cohort: Sequence[int]) -> list[Turn]:
        """List what every client of a cohort is asked to do."""
        standing, chosen = self.standing(now.number), list(cohort)
        importance, scales = standing.importance[chosen].tolist(), standing.scales[chosen].tolist()
        known = self.missing == "inverse" or self.privacy is not None  # whoever takes part
        kind = "unbiased" if known else self.algorithm.weights
        weights = cohort_weights(importance, [scale / standing.arrival for scale in scales], kind)
        return [
            Turn(position, now.told(alpha, scale), weight)
            for position, alpha, scale, weight in zip(cohort, importance, scales, weights, strict=True)
        ]

    def emphasise(self, turns: Sequence[Turn], state: Weights) -> list[Turn]:
        """Tell clients what they multiply their gradients by, where there is an objective."""
        if self.objective is None or not turns:
            return list(turns)
        importance = self.standing(turns[0].now.number).importance
        emphases = self.objective.emphases(state, [turn.position for turn in turns], importance)
        return [
            replace(turn, now=replace(turn.now, emphasis=emphasis))
            for turn, emphasis in zip(turns, emphases, strict=True)
        ]

    def play(
        self,
        engine: Engine,
        number: int,
        shared: Weights,
        server: Weights,
        cohort: Sequence[int],
        *,
        ids: Sequence[ClientId],
        keep: Callable[[Mapping[ClientId, Weights]], None],
        arrives: Callable[[Outcome], bool] = lambda outcome: True,
        takes: Callable[[Outcome], float] | None = None,
    ) -> Played:
        """Play a round.

        Parameters
        ----------
        engine
            Where clients work.
        number
            Of the round, from 1.
        cohort
            Positions of those who take part, ascending.
        ids
            All clients, by position.
        keep
            Takes the states that have changed, after every exchange.
        arrives
            Says whose contribution arrives.
        takes
            Says after how many seconds; the slowest of those that arrive is a metric, SLOWEST.
        """
        played: Played | None = None
        for exchange in range(self.algorithm.exchanges):
            now = self.round(number, exchange)
            server, watch, guard = self._divided(now, server)
            answers = self.algorithm.answers(now, shared, server, [ids[position] for position in cohort])
            turns = [
                replace(turn, answer=dict(answers[ids[turn.position]]))
                if answers and ids[turn.position] in answers
                else turn
                for turn in self.emphasise(self.turns(now, cohort), watch)
            ]
            work = engine.run(turns, shared)
            if self.liars is not None:
                work = spoiled(work, self.liars, turns, now, ids=ids, largest=self.algorithm.largest)
            sound = [outcome for outcome in work.outcomes if outcome.finite]  # the others did nothing of use
            gathered = engine.pool(self._gather(turns, work, [o for o in sound if arrives(o)], takes, guard))
            states = {outcome.client: outcome.state for outcome in sound}
            alike = nbytes(shared)
            bytes_down = sum(nbytes({**shared, **t.answer}) if t.answer else alike for t in turns)
            began, refused = time.perf_counter(), False
            guarded: Weights = {}
            # without any reply there is no step, not even one of the server's momentum, unless it would tell
            if gathered.arrived or guard is not None:
                aggregate = self.aggregate(gathered, asked=len(turns))
                if guard is not None and not work.noised:
                    aggregate, guarded = guard.release(aggregate, _form(engine, exchange, aggregate))
                known = replace(now, alpha=_share(turns, now))
                moved, memory = self.algorithm.server_step(known, shared, server, aggregate)
                refused = not (is_finite(moved) and is_finite(memory))
                if not refused:
                    shared, server = moved, memory
            server = {
                **server,
                **self._watched(number, watch, gathered.losses),
                **with_prefix(_PRIVACY, guarded),
            }
            seconds = gathered.seconds + time.perf_counter() - began
            keep(states)
            this = Played(
                shared,
                server,
                states,
                {**gathered.metrics, "bytes_down": total(bytes_down)},
                missing=len(turns) - len(gathered.rejected) - gathered.arrived,
                silent=_silent([ids[turn.position] for turn in turns], gathered),
                rejected=gathered.rejected,
                refused=refused,
                arrived=gathered.arrived,
                seconds=seconds,
            )
            played = this if played is None else _after(played, this)
        assert played is not None
        return played

    def aggregate(self, gathered: Gathered, *, asked: int) -> Weights:
        """Combine what has arrived."""
        factor = correction(gathered.weight, complete=gathered.arrived == asked, missing=self.missing)
        parts = [(1.0, gathered.total)] if self.aggregation.additive else list(gathered.parts.values())
        weights = [weight * factor for weight, _ in parts]
        combined = self.aggregation.combine([c for _, c in parts], weights)
        return {**combined, **gathered.largest, **gathered.alone}

    def _divided(self, now: Round, server: Weights) -> tuple[Weights, Weights, Guard | None]:
        """Tell the server's own state from what it keeps for objective and privacy, made when there is none yet."""
        kept, standing = of_prefix(_OBJECTIVE, server), self.standing(now.number)
        if self.objective is not None and not kept:
            kept = self.objective.first(standing.importance)
        guard = None
        if self.privacy is not None:
            heaviest = float((standing.importance * standing.scales).max()) / standing.arrival
            key = key_of(self.seed) if self.noise_key is None else self.noise_key
            guard = Guard(self.privacy, of_prefix(_PRIVACY, server), heaviest, key, now)
        own = {n: t for n, t in server.items() if not n.startswith((_OBJECTIVE, _PRIVACY))}
        return own, kept, guard

    def _watched(self, number: int, kept: Weights, losses: Mapping[int, float]) -> Weights:
        """Move what the server keeps for the objective: in a round without losses too, which is one of them."""
        if self.objective is None:
            return {}
        standing = self.standing(number)
        weights = {p: float(standing.importance[p] * standing.scales[p]) / standing.arrival for p in losses}
        moved = self.objective.step(kept, losses, weights, standing.importance)
        return {_OBJECTIVE + name: tensor for name, tensor in moved.items()}

    def _gather(
        self,
        turns: Sequence[Turn],
        work: Work,
        arrived: Sequence[Outcome],
        takes: Callable[[Outcome], float] | None,
        guard: Guard | None,
    ) -> Gathered:
        """Put together what has arrived in this process."""
        weights = {turn.position: turn.weight for turn in turns}
        names, alone = self.algorithm.largest, self.algorithm.sent_alone
        parts = {
            o.position: (
                weights[o.position],
                {n: t for n, t in o.contribution.items() if n not in names and not alone(n)},
            )
            for o in arrived
            if o.contribution is not None
        }
        if guard is not None:
            if work.sums and not work.noised:
                raise SettingError(
                    "privacy= clips every client before anything is summed, and this engine has summed some already: "
                    "it must give each client's contribution by itself, or let clients clip and add noise (Work.noised)"
                )
            parts = {position: (weight, guard.bounded(sent)) for position, (weight, sent) in parts.items()}
        sent = [outcome.contribution for outcome in arrived if outcome.contribution is not None]
        tops = [{n: t for n, t in part.items() if n in names} for part in (*sent, *work.sums)]
        summed = [{n: t for n, t in part.items() if n not in names} for part in work.sums]
        additive = self.aggregation.additive
        return Gathered(
            parts={} if additive else parts,
            total=weighted_sum([*parts.values(), *((1.0, s) for s in summed)]) if additive else {},
            largest=elementwise_largest(tops),
            weight=sum(weights[outcome.position] for outcome in arrived),
            answered=len(work.outcomes),
            rejected=[outcome.client for outcome in work.outcomes if not outcome.finite],
            arrived=len(arrived),
            heard=[outcome.client for outcome in arrived],
            losses={
                o.position: loss
                for o in arrived
                if JOINT_LOSS in o.metrics and (loss := o.metrics[JOINT_LOSS].value) is not None
            },
            metrics=combine(
                [
                    *(outcome.metrics for outcome in work.outcomes),
                    {"bytes_up": total(sum(outcome.bytes_up for outcome in arrived))},
                    *({SLOWEST: largest(takes(outcome))} for outcome in arrived if takes is not None),
                ]
            ),
            seconds=work.seconds,
            alone={
                of_client(name, outcome.client): tensor
                for outcome in arrived
                for name, tensor in (outcome.contribution or {}).items()
                if alone(name)
            },
        )


def _silent(asked: Sequence[ClientId], gathered: Gathered) -> list[ClientId]:
    if gathered.arrived + len(gathered.rejected) == len(asked):
        return []
    known = {*gathered.heard, *gathered.rejected}
    return [client for client in asked if client not in known]


def _share(turns: Sequence[Turn], now: Round) -> float:
    """Give what turns sum_i w_i c_i into sum_i a_i c_i: a_i / w_i, which all have in common."""
    weight = sum(turn.weight for turn in turns)
    return sum(turn.now.alpha for turn in turns) / weight if weight else 1 / now.largest_scale


def _form(engine: Engine, exchange: int, arrived: Weights) -> Weights:
    """Give tensors like those of a contribution: what has arrived, or what a client would send."""
    if arrived:
        return arrived
    if not isinstance(engine, Rehearsing):
        raise SettingError(
            f"no reply arrived, and under privacy there is noise all the same: {type(engine).__name__} needs a "
            "method forms() that gives a contribution per exchange"
        )
    return engine.forms()[exchange]


def _after(first: Played, second: Played) -> Played:
    """Put two exchanges of one round together: what was measured last counts, and work adds up."""
    metrics = {**first.metrics, **second.metrics}
    for name in _OF_WORK:
        if name in first.metrics and name in second.metrics:
            one, other = first.metrics[name], second.metrics[name]
            metrics[name] = replace(other, total=one.total + other.total)
    return replace(
        second,
        states={**first.states, **second.states},
        metrics=metrics,
        missing=max(first.missing, second.missing),
        silent=list(dict.fromkeys([*first.silent, *second.silent])),
        rejected=list(dict.fromkeys([*first.rejected, *second.rejected])),
        refused=first.refused or second.refused,
        seconds=first.seconds + second.seconds,
    )
