"""Client work in this process: several clients side by side, small ones together in one pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import torch

from pflego.algorithms.base import Algorithm, Reply, Round, Update
from pflego.engines.base import Outcome
from pflego.evaluation import Score
from pflego.federation import ClientId
from pflego.parallel import map_in_threads
from pflego.problem import Problem, Problems
from pflego.weights import Weights, is_finite, to

_SMALL = 256  # clients of up to so many samples go through the backbone together
_MANY = 50  # where a cohort has at least so many of them,
_TOGETHER = 2048  # up to so many samples at a time,
_WORK = 4e8  # and so many multiplications: the activations of all are in memory at once


@dataclass(frozen=True)
class LocalEngine:
    """Runs a cohort here.

    Parameters
    ----------
    problems, algorithm, states
        Who, how, and what each client kept.
    together
        Whether one reply may stand for several clients: not where replies can be missing one by one.
    """

    problems: Problems
    algorithm: Algorithm
    states: Mapping[ClientId, Weights]
    together: bool = True

    def personal(self, shared: Weights, problem: Problem, *, adapt: bool = False) -> Weights:
        """The weights of a client's own model, its state first made ready for the shared weights if asked to."""
        state = to(self.states[problem.client.id], problem.device)
        if adapt:
            state = self.algorithm.adapt(shared, state, problem)
        return self.algorithm.personal(shared, state, problem)

    def scores(
        self, shared: Weights, *, adapt: bool = False, only: Sequence[int] | None = None
    ) -> list[Score]:
        """Try every client's model on its own test data, in the order of the federation; or those of some only."""

        def score(position: int) -> Score:
            problem = self.problems[position]
            return problem.test(self.personal(shared, problem, adapt=adapt))

        tested = range(len(self.problems.federation)) if only is None else only
        size = self.problems.size(tested)
        return map_in_threads(score, tested, size=size, device=self.problems.device)

    def run(self, round: Round, shared: Weights, cohort: Sequence[int]) -> list[Outcome]:
        """Let every client of the cohort do its work; outcomes in the order of the federation."""
        sizes = self.problems.federation.sizes
        groups = self._groups(sorted(cohort))
        groups.sort(key=lambda group: -sum(int(sizes[position]) for position in group))  # the longest first
        done = map_in_threads(
            lambda group: self._group(round, shared, group),
            groups,
            size=self.problems.size(cohort),
            device=self.problems.device,
        )
        return sorted((outcome for group in done for outcome in group), key=lambda outcome: outcome.position)

    def _groups(self, cohort: Sequence[int]) -> list[list[int]]:
        """Put small clients together where there are many. Who is with whom depends on the cohort alone."""
        sizes = {position: int(self.problems.federation.sizes[position]) for position in cohort}
        small = [position for position in cohort if sizes[position] <= _SMALL]
        if not self.together or len(small) < _MANY:
            return [[position] for position in cohort]
        model = self.problems.model
        most = min(_TOGETHER, _WORK / max(1, sum(model.sizes.values())), _SMALL if model.slice else inf)
        groups = [[position] for position in cohort if sizes[position] > _SMALL]
        room = 0.0
        for position in small:
            if sizes[position] > room:
                groups.append([])
                room = most
            groups[-1].append(position)
            room -= sizes[position]
        return groups

    def _group(self, round: Round, shared: Weights, positions: Sequence[int]) -> list[Outcome]:
        problems = [self.problems[position] for position in positions]
        states = [to(self.states[problem.client.id], problem.device) for problem in problems]
        start = time.perf_counter()
        joined = self.algorithm.together(round, shared, states, problems) if len(problems) > 1 else None
        seconds = (time.perf_counter() - start) / len(problems)
        if joined is not None:
            updates, message = joined
            reply = Reply(problems[0].client.id, sum(problem.samples for problem in problems), message)
            sound = is_finite(message)
            outcomes = [
                self._outcome(shared, position, problem, update, reply, seconds, sound=sound)
                for position, problem, update in zip(positions, problems, updates, strict=True)
            ]
            if all(outcome.finite for outcome in outcomes):
                return outcomes
            # one by one, to see whose fault it is
            problems = [self.problems[position] for position in positions]
        return [
            self._alone(round, shared, *client) for client in zip(positions, states, problems, strict=True)
        ]

    def _alone(
        self, round: Round, shared: Weights, position: int, state: Weights, problem: Problem
    ) -> Outcome:
        start = time.perf_counter()
        update = self.algorithm.client_update(round, shared, state, problem)
        seconds = time.perf_counter() - start
        reply = Reply(problem.client.id, problem.samples, update.message)
        sound = is_finite(update.message)
        return self._outcome(shared, position, problem, update, reply, seconds, sound=sound)

    def _outcome(
        self,
        shared: Weights,
        position: int,
        problem: Problem,
        update: Update,
        reply: Reply,
        seconds: float,
        *,
        sound: bool,
    ) -> Outcome:
        """Evaluate the client after its work; `sound` says whether its message is finite."""
        weights = update.model or self.algorithm.personal(shared, update.state, problem)
        loss = problem.loss(weights) if update.loss is None else update.loss
        return Outcome(
            position,
            problem.client.id,
            problem.samples,
            reply,
            state=to(update.state, torch.device("cpu")),
            loss=loss,
            score=problem.test(weights),
            seconds=seconds,
            worker=threading.get_ident(),
            forward_passes=problem.forward_passes,
            backward_passes=problem.backward_passes,
            fallbacks=update.fallbacks,
            finite=sound and isfinite(loss) and is_finite(update.state),
        )
