"""Client work in this process: several clients side by side, small ones together in one pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf, isfinite

import torch

from pflego.algorithms.base import Algorithm, works_in_groups
from pflego.engines.base import Gathered, Outcome, Turn, Work
from pflego.engines.parallel import map_in_threads
from pflego.engines.rehearsal import rehearse
from pflego.errors import SettingError, calling, named, shortened
from pflego.exchange.compression import Compression, memory_of, pack, without_memory
from pflego.exchange.metrics import Metric, check_names, largest, mean
from pflego.exchange.objective import JOINT_LOSS
from pflego.exchange.round import Update
from pflego.exchange.transforms import Transform
from pflego.federation.roster import ClientId
from pflego.learning.evaluation import Score
from pflego.learning.problem import Problem
from pflego.learning.problems import Problems
from pflego.learning.scoring import scores_together
from pflego.weights import Weights, is_finite, nbytes, to

_SMALL = 256  # clients of at most this many samples go through the backbone together
_MANY = 50  # where a cohort has at least this many of them,
_TOGETHER = 2048  # at most this many samples at a time,
_WORK = 4e8  # and this many multiplications: the activations of all are in memory at once

Busy = tuple[int, float]  # a worker, and the seconds it was at work


@dataclass(frozen=True)
class _Done:
    """What came of clients that worked together, or of one."""

    outcomes: list[Outcome]
    summed: Weights | None  # their contributions, where no outcome has its own
    busy: Busy


@dataclass(frozen=True)
class LocalEngine:
    """Runs a cohort here.

    Parameters
    ----------
    problems, algorithm, states
        Who, how, and what each client kept.
    transforms
        What happens to a contribution before it is sent.
    together
        Whether contributions may be added up before they are sent: not where replies can be missing one by one.
    evaluate
        Whether a client's loss and test result are looked at after its work.
    training
        Whether its result on its training data is looked at too.
    compression
        How a contribution is made small for the wire, after all transforms.
    """

    problems: Problems
    algorithm: Algorithm
    states: Mapping[ClientId, Weights]
    transforms: Sequence[Transform] = ()
    together: bool = True
    evaluate: bool = True
    training: bool = False
    compression: Compression | None = None

    def personal(self, shared: Weights, problem: Problem, *, adapt: bool = False) -> Weights:
        """Give the weights of a client's own model, its state first made ready for the shared ones if asked to."""
        state = self._state(problem)
        if adapt:
            state = self.algorithm.adapt(shared, state, problem)
        return self.algorithm.personal(shared, state, problem)

    def scores(
        self, shared: Weights, *, adapt: bool = False, only: Sequence[int] | None = None
    ) -> list[Score]:
        """Try every client's model on its own test data, in the order of the federation; or those of some only."""

        def scores(positions: Sequence[int]) -> list[Score]:
            problems = [self.problems[position] for position in positions]
            return scores_together(problems, [self.personal(shared, one, adapt=adapt) for one in problems])

        tested = range(len(self.problems.federation)) if only is None else only
        groups, size = self._packed(tested), self.problems.size(tested)
        found = map_in_threads(scores, groups, size=size, device=self.problems.device)
        by_position = dict(zip(chain(*groups), chain(*found), strict=True))
        return [by_position[position] for position in tested]

    def pool(self, gathered: Gathered) -> Gathered:
        """Return what is given: there is no other process."""
        return gathered

    def forms(self) -> list[Weights]:
        """Give what the first client would send in each exchange of a round, with everybody's first weights."""
        problem = self.problems[0]
        states = {problem.client.id: self.algorithm.init_state(problem, 0)}
        alone = replace(self, states=states, evaluate=False)
        played = rehearse(alone, self.problems, self.algorithm, states, seed=0)
        return [to(exchange.contribution, self.problems.device) for exchange in played]

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        """Let every client of the cohort do its work."""
        sizes = self.problems.federation.sizes
        groups = self._groups(sorted(turns, key=lambda turn: turn.position))
        groups.sort(key=lambda group: -sum(int(sizes[turn.position]) for turn in group))  # the longest first
        done = map_in_threads(
            lambda group: self._group(group, shared),
            groups,
            size=self.problems.size([turn.position for turn in turns]),
            device=self.problems.device,
        )
        done.sort(key=lambda part: part.outcomes[0].position)
        outcomes = [outcome for part in done for outcome in part.outcomes]
        return Work(
            sorted(outcomes, key=lambda outcome: outcome.position),
            [part.summed for part in done if part.summed is not None],
            busiest(part.busy for part in done),
        )

    def _groups(self, turns: Sequence[Turn]) -> list[list[Turn]]:
        """Put small clients together, where what they send is added up anyway."""
        if not self._adds_up:
            return [[turn] for turn in turns]
        told = {turn.position: turn for turn in turns}
        alone = [turn.position for turn in turns if turn.answer]
        groups = self._packed([turn.position for turn in turns if not turn.answer])
        return [[told[position] for position in group] for group in [*([one] for one in alone), *groups]]

    def _packed(self, positions: Sequence[int]) -> list[list[int]]:
        """Put small clients together where there are many. Who is with whom depends on who is there alone."""
        sizes = {position: int(self.problems.federation.sizes[position]) for position in positions}
        small = [position for position in positions if sizes[position] <= _SMALL]
        if len(small) < _MANY:
            return [[position] for position in positions]
        model = self.problems.trained
        most = min(_TOGETHER, _WORK / max(1, sum(model.sizes.values())), _SMALL if model.slice else inf)
        groups = [[position] for position in positions if sizes[position] > _SMALL]
        room = 0.0
        for position in small:
            if sizes[position] > room:
                groups.append([])
                room = most
            groups[-1].append(position)
            room -= sizes[position]
        return groups

    @property
    def _adds_up(self) -> bool:
        # clients whose backbones differ cannot go through one together
        one_backbone = not self.problems.model.personal_names
        as_they_are = not self.transforms and self.compression is None
        return one_backbone and self.together and as_they_are and works_in_groups(self.algorithm)

    def _group(self, turns: Sequence[Turn], shared: Weights) -> _Done:
        """Let clients work together, or one by one where that comes to nothing."""
        start = time.perf_counter()
        if len(turns) > 1:
            problems = [self._problem(turn) for turn in turns]
            states = [self._state(problem) for problem in problems]
            updates, summed = self.algorithm.group_update(
                [turn.now for turn in turns], shared, states, problems, [turn.weight for turn in turns]
            )
            seconds = time.perf_counter() - start
            outcomes = self._outcomes(shared, turns, problems, updates, summed)
            if all(outcome.finite for outcome in outcomes):
                return _Done(outcomes, summed, (threading.get_ident(), seconds))
        alone = [self._alone(turn, shared) for turn in turns]  # also to see whose fault it is
        seconds = sum(seconds for _, seconds in alone)
        return _Done([outcome for outcome, _ in alone], None, (threading.get_ident(), seconds))

    def _alone(self, turn: Turn, shared: Weights) -> tuple[Outcome, float]:
        problem = self._problem(turn)
        state = self._state(problem)
        received = {**shared, **turn.answer}
        start = time.perf_counter()
        update = self.algorithm.client_update(turn.now, received, state, problem)
        sent = self._transformed(update.contribution, turn)
        packed: Weights | None = None
        memory: Weights = {}
        if self.compression is not None and is_finite(sent):
            packed, sent, memory = pack(
                self.compression,
                sent,
                memory_of(self.states[problem.client.id]),
                turn.now,
                problem.client.id,
                exact=self.algorithm.exact,
            )
        seconds = time.perf_counter() - start
        [outcome] = self._outcomes(received, [turn], [problem], [update], sent)
        outcome = replace(outcome, contribution=sent)
        if packed is not None:
            outcome = replace(
                outcome,
                state={**outcome.state, **memory},
                packed=packed,
                bytes_up=nbytes(packed),
                finite=outcome.finite and is_finite(memory),
            )
        return outcome, seconds

    def _state(self, problem: Problem) -> Weights:
        """Give what a client has kept for its method."""
        return to(without_memory(self.states[problem.client.id]), problem.device)

    def _problem(self, turn: Turn) -> Problem:
        return self.problems[turn.position].at(turn.now.seed, turn.now.number)

    def _transformed(self, contribution: Weights, turn: Turn) -> Weights:
        """Apply the transforms to differences and gradients; what the server takes the largest of is neither."""
        names, client = self.algorithm.largest, self.problems.federation.ids[turn.position]
        sent = {name: tensor for name, tensor in contribution.items() if name not in names}
        for transform in self.transforms:
            with calling(f"transform {named(transform)} failed", SettingError):
                done = transform(sent, turn.now, client)
            if not isinstance(done, Mapping) or done.keys() != sent.keys():
                raise SettingError(
                    f"transform {named(transform)} must give tensors by the names it was given, "
                    f"{', '.join(sent)}, not {shortened(done)}"
                )
            sent = dict(done)
        return {**sent, **{name: tensor for name, tensor in contribution.items() if name in names}}

    def _outcomes(
        self,
        shared: Weights,
        turns: Sequence[Turn],
        problems: Sequence[Problem],
        updates: Sequence[Update],
        sent: Weights,
    ) -> list[Outcome]:
        """Look at what clients have come to; `sent` is the sum of their contributions, or that of the only one."""
        sound, size = is_finite(sent), nbytes(sent)
        models: list[Weights] = []
        losses: list[float] = [0.0] * len(turns)
        if self.evaluate:
            models = [
                update.model or self.algorithm.personal(shared, update.state, problem)
                for update, problem in zip(updates, problems, strict=True)
            ]
            losses = [
                problem.loss(model) if update.loss is None else update.loss
                for problem, model, update in zip(problems, models, updates, strict=True)
            ]
        kept = _states_finite(updates)
        finite = [
            sound and isfinite(loss) and one and _all_finite(update.metrics)
            for loss, update, one in zip(losses, updates, kept, strict=True)
        ]
        seen: list[dict[str, Metric]] = [{} for _ in turns]
        if self.evaluate and all(finite):
            seen = self._seen(turns, problems, models, losses)
        return [
            Outcome(
                turn.position,
                problem.client.id,
                problem.samples,
                state=to(update.state, torch.device("cpu")),
                metrics={**(update.metrics if fine else {}), **_measured(turn, problem, update), **looked},
                contribution=None,
                bytes_up=size,
                finite=fine,
            )
            for turn, problem, update, fine, looked in zip(
                turns, problems, updates, finite, seen, strict=True
            )
        ]

    def _seen(
        self,
        turns: Sequence[Turn],
        problems: Sequence[Problem],
        models: Sequence[Weights],
        losses: Sequence[float],
    ) -> list[dict[str, Metric]]:
        """Try clients' models on their own data."""
        seen = [
            {"loss": mean(loss, turn.now.alpha), "test": Metric(score.score, "mean", score.samples)}
            for turn, loss, score in zip(turns, losses, scores_together(problems, models), strict=True)
        ]
        if self.training:
            for metrics, problem, model in zip(seen, problems, models, strict=True):
                score = problem.test_on_training_data(model)
                metrics["training"] = Metric(score.score, "mean", score.samples)
        return seen


def _measured(turn: Turn, problem: Problem, update: Update) -> dict[str, Metric]:
    """Say how much a client did, and where it stood."""
    check_names(update.metrics)
    metrics = {
        "forward_passes": largest(problem.forward_passes),
        "backward_passes": largest(problem.backward_passes),
    }
    if problem.trunk_passes is not None:
        metrics["trunk_passes"] = largest(problem.trunk_passes)
    if turn.now.emphasis is not None and update.joint_loss is not None:
        metrics[JOINT_LOSS] = mean(update.joint_loss, turn.now.alpha)
    return metrics


def _states_finite(updates: Sequence[Update]) -> list[bool]:
    """Tell whose state is finite; looking at all of them at once is enough where they are."""
    flat = [tensor.flatten() for update in updates for tensor in update.state.values()]
    if not flat or is_finite({"": torch.cat(flat) if len(flat) > 1 else flat[0]}):
        return [True] * len(updates)
    return [is_finite(update.state) for update in updates]


def _all_finite(metrics: Mapping[str, Metric]) -> bool:
    return all(isfinite(metric.total) for metric in metrics.values())


def busiest(work: Iterable[Busy]) -> float:
    """Give the seconds of the worker that was at work longest."""
    seconds: dict[int, float] = {}
    for worker, spent in work:
        seconds[worker] = seconds.get(worker, 0.0) + spent
    return max(seconds.values(), default=0.0)
