"""The round loop: a run, its folder, its peers and its clients' states, held together while it trains."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from pflego.algorithms.base import newcomer
from pflego.engines.base import Changing, Engine, Outcome
from pflego.engines.play import SLOWEST, Played
from pflego.errors import UserError
from pflego.exchange.compression import without_memory
from pflego.exchange.metrics import ABOVE_BOUND, RATE_OVER_BOUND, Metric
from pflego.federation.remote import RemoteFederation
from pflego.federation.roster import ClientId
from pflego.learning.evaluation import pooled
from pflego.runs.folder import RunFolder
from pflego.runs.history import HistoryRow, everybodys
from pflego.runs.plan import Plan
from pflego.runs.privacy import accountant_of, check_private
from pflego.runs.run import Run, members_only
from pflego.runs.states import States
from pflego.training.callbacks import Callback, watching
from pflego.weights import Weights, is_finite, nbytes, to


class RateWarning(UserWarning):
    """A rate lies above the bound under which the theory promises convergence."""


class PrivacyWarning(UserWarning):
    """Privacy that was asked for ends training early, or promises little."""


class NothingLearnedWarning(UserWarning):
    """A run ended with the weights it began with."""


class _Reply(TypedDict):
    samples: int
    passes: float
    sent: int  # bytes, both ways


@dataclass
class Training:
    """A run that is being trained.

    Parameters
    ----------
    run
        What has come of it so far, and its plan.
    engine
        Where client work runs.
    states
        What clients keep.
    server
        The server's own state: its optimiser's.
    folder
        Where it is written down, if anywhere.
    own
        By position, whether a client is this process's.
    checkpoint_every, keep
        Rounds between checkpoints, and how many of these are kept.
    check
        Refuses a plan that the method cannot follow.
    """

    run: Run
    engine: Engine
    states: States
    server: Weights
    folder: RunFolder | None
    own: npt.NDArray[np.bool_]
    checkpoint_every: int = 1
    keep: int = 1
    check: Callable[[Plan], None] = lambda plan: None

    def __post_init__(self) -> None:
        self._exchange = self.run.plan.exchange(self.run.algorithm, self.run.federation)
        self._accountant = accountant_of(self.run.plan, self.run.algorithm, self.run.federation)
        self._unsaved: dict[ClientId, Weights] = {}
        self._warned = False

    def rounds(self, first: int, callbacks: Sequence[Callback]) -> None:
        """Play the rounds from one on.

        With a secret, weights leave only when they are on disk: a round that is done again would otherwise be released
        twice under one noise.
        """
        plan = self.run.plan
        with watching(callbacks, self.run):
            if first > 1:
                self._hand_over(first - 1)  # it may have been stopped right before it
            for number in range(first, plan.rounds + 1):
                row = self.play(number)
                if plan.evaluates(number) and plan.secret is None:
                    self.evaluate(row)
                if self._accountant is not None and plan.accounts(number):
                    row["epsilon"] = self._accountant.epsilon(number)
                self.run.history.append(row)
                self.write(number, row)
                self._hand_over(number)
                for callback in callbacks:
                    callback.on_round(self.run, row)
                    self._check_after(callback)
        if self.run.history and not self.run.learned:
            warnings.warn(
                "nothing was learned: in no round did anything arrive that the server could use; the shared weights "
                + ("are those it began with" if self._accountant is None else "have moved by noise alone"),
                NothingLearnedWarning,
                stacklevel=3,
            )

    def play(self, number: int) -> HistoryRow:
        """Let a cohort work and the server step; give the round's row of the history."""
        run = self.run
        self._settle(number)
        self._welcome(number)
        cohort = run.plan.cohort(number, run.federation.ids)
        played = self._exchange.play(
            self.engine,
            number,
            run.shared,
            self.server,
            cohort,
            ids=run.federation.ids,
            keep=self._keep,
            arrives=lambda outcome: (
                run.plan.network.lossless
                or run.plan.network.delivers(
                    **self._reply(outcome), client=outcome.client, number=number, seed=run.plan.seed
                )
            ),
            takes=(
                lambda outcome: run.plan.network.speed.seconds(
                    **self._reply(outcome), client=outcome.client, seed=run.plan.seed
                )
            )
            if run.plan.network.timed
            else None,
        )
        run.shared, self.server = played.shared, played.server
        run.rejected.update(played.rejected)
        run.silent.update(played.silent)
        self._warn_of_rates(number, cohort, played.metrics)
        return self._row(number, len(cohort), played)

    def evaluate(self, row: HistoryRow) -> None:
        """Test everyone with the weights as they are, and if asked after local steps; note it in the round's row."""
        task = self.run.federation.task
        number = int(row["round"] or 0)
        scores = members_only(self.run, number, self.engine.scores(self.run.shared))
        row[f"everyone_{task.metric}"] = pooled(scores, task)
        if self.run.plan.evaluate_adapted:
            adapted = members_only(self.run, number, self.engine.scores(self.run.shared, adapt=True))
            row[f"everyone_adapted_{task.metric}"] = pooled(adapted, task)
        self.run.evaluations[number] = [score.value(task) for score in scores]

    def _hand_over(self, number: int) -> None:
        """With a secret, give clients the weights, now on disk, where they would be evaluated; no figures come back."""
        if self.run.plan.secret is not None and self.run.plan.evaluates(number):
            self.engine.scores(self.run.shared)

    def write(self, number: int, row: HistoryRow) -> None:
        """Write the round down, and where it is time for one, a checkpoint."""
        if self.folder is None:
            return
        self.folder.append(row, self.run.evaluations.get(number))
        if number == self.run.plan.rounds or number % self.checkpoint_every == 0:
            self.folder.save(
                number,
                self.run.shared,
                self.server,
                self._unsaved,
                rejected=self.run.rejected,
                silent=self.run.silent,
                keep=self.keep,
            )
            self._unsaved.clear()
            self.states.written()

    def warn(self) -> None:
        """Say once what looks wrong before the first round, where the client is that sees it."""
        run = self.run
        cohort = run.plan.cohort(1, run.federation.ids)
        if not cohort or not self.own[cohort[0]]:
            return
        problem = run.problems[cohort[0]]
        [turn, *_] = self._exchange.turns(self._exchange.round(1), cohort)
        state = to(without_memory(run.states[problem.client.id]), problem.device)
        if words := run.algorithm.warn(turn.now, run.shared, state, problem):
            warnings.warn(words, RateWarning, stacklevel=3)

    def _check_after(self, callback: Callback) -> None:
        if not is_finite(self.run.shared):
            raise UserError(
                f"the callback {type(callback).__name__} left shared weights that are not finite; the checkpoint "
                "before it is whole, and the run can be resumed from there"
            )

    def _warn_of_rates(self, number: int, cohort: Sequence[int], metrics: Mapping[str, Metric]) -> None:
        """Say once when clients step at rates above the theory's bound: the history counts them in every round."""
        above, ratio = metrics.get(ABOVE_BOUND), metrics.get(RATE_OVER_BOUND)
        if self._warned or above is None or not above.total or not self.own[cohort[0]]:
            return
        self._warned = True
        times = f", up to {ratio.total:.3g} times," if ratio is not None else ""
        warnings.warn(
            f"round {number}: {above.total:.0f} of {len(cohort)} clients took head steps at a rate above{times} the "
            "bound of Proposition 2, 2/L_i, and may have gone uphill; client_lr='auto' stays below it. The history "
            f"counts them as {ABOVE_BOUND}",
            RateWarning,
            stacklevel=4,
        )

    def _settle(self, number: int) -> None:
        """Take note of who has come and gone, where an engine's clients do so while the run goes on."""
        run = self.run
        if not isinstance(self.engine, Changing):
            return
        federation = self.engine.settle(number, run.shared, self._check_members)
        if federation is run.federation:
            return
        newcomers = federation.ids[len(run.federation) :]
        run.problems = replace(run.problems, federation=federation)
        run.plan = replace(run.plan, population=federation.population)
        run.evaluations = everybodys(run.evaluations, len(federation))
        self.own = np.ones(len(federation), dtype=bool)
        self.states.enlarge(federation)
        self._keep({client: {} for client in newcomers})  # what they keep is with them
        self._exchange = run.plan.exchange(run.algorithm, federation)

    def _check_members(self, federation: RemoteFederation) -> None:
        """Refuse members that the run cannot go on with."""
        plan = replace(self.run.plan, population=federation.population)
        plan.check(federation.ids, awaited=federation.awaited)
        check_private(plan, self.run.algorithm)
        self.check(plan)

    def _welcome(self, number: int) -> None:
        """Give those who come for the first time a state for the shared weights as they are."""
        run, population = self.run, self.run.plan.population
        if population is None or isinstance(self.engine, Changing):  # it has done so
            return
        for position in population.newcomers(run.federation.ids, number=number, seed=run.plan.seed):
            if self.own[position]:
                problem = run.problems[position]
                _, state = newcomer(
                    run.algorithm, run.shared, problem, seed=run.plan.seed, steps=population.steps
                )
                self._keep({problem.client.id: state})

    def _keep(self, changed: Mapping[ClientId, Weights]) -> None:
        self.states.update(changed)
        self._unsaved.update(changed)

    def _row(self, number: int, asked: int, played: Played) -> HistoryRow:
        task = self.run.federation.task
        metrics = dict(played.metrics)
        population = self.run.plan.population
        network, slowest = self.run.plan.network, metrics.pop(SLOWEST, None)
        took = None if slowest is None else slowest.value

        def figure(name: str) -> float | None:
            found = metrics.pop(name, None)
            return None if found is None or found.value is None else task.metric_value(found.value)

        tested = {f"participants_{task.metric}": figure("test")}
        if self.run.plan.evaluate_training:
            tested[f"participants_training_{task.metric}"] = figure("training")
        return {
            "round": number,
            "participants": asked,
            "loss": None,
            **tested,
            "seconds": played.seconds,
            "forward_passes": 0,
            "backward_passes": 0,
            "missing": played.missing,
            "rejected": len(played.rejected),
            "refused": int(played.refused),
            **({"waited": network.waited(took, missing=played.missing)} if network.timed else {}),
            **({} if population is None else self._coming_and_going(number)),
            **{name: metric.value for name, metric in metrics.items()},
        }

    def _coming_and_going(self, number: int) -> HistoryRow:
        """Count a round's members, and of them those who came, and those who went, since the last one."""
        plan, ids = self.run.plan, self.run.federation.ids
        now = plan.there(number, ids)
        before = plan.there(max(1, number - 1), ids)
        return {
            "members": int(now.sum()),
            "joined": int((now & ~before).sum()),
            "left": int((before & ~now).sum()),
        }

    def _reply(self, outcome: Outcome) -> _Reply:
        """Give what the time of a client's reply depends on."""
        counted = [
            outcome.metrics.get(f"{way}_passes") for way in ("forward", "backward")
        ]  # unless it is private
        passes = sum(metric.total for metric in counted if metric is not None)
        sent = nbytes(self.run.shared) + outcome.bytes_up
        return {"samples": outcome.samples, "passes": passes, "sent": sent}
