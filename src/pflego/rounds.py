"""A round: who takes part, what their work comes to, the server's step."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pflego.algorithms.base import Missing, Round
from pflego.engines.base import Engine, Outcome, Spread, Tally, replies_of
from pflego.evaluation import Score, pooled
from pflego.federation import ClientId
from pflego.history import HistoryRow
from pflego.participation import Participation, cohort
from pflego.replies import Network
from pflego.run import Run
from pflego.weights import Weights, nbytes, to


class RateWarning(UserWarning):
    """A rate lies above the bound under which the theory promises convergence."""


@dataclass
class Rounds:
    """The rounds of a run, one by one."""

    run: Run
    engine: Engine
    participation: Participation
    network: Network
    missing: Missing
    seed: int
    server: Weights

    def play(self, number: int) -> tuple[HistoryRow, dict[ClientId, Weights]]:
        """Let a cohort work and the server step; give the round's figures and the states that changed."""
        run, task = self.run, self.run.federation.task
        chosen = self._cohort(number)
        round = self._round(number, chosen)
        outcomes = self.engine.run(round, run.shared, chosen)
        sound = [outcome for outcome in outcomes if outcome.finite]  # the others did nothing that can be used
        arrived = [outcome for outcome in sound if self._arrives(outcome, number)]
        replies, tally = replies_of(arrived), Tally.of(outcomes, sound, arrived)
        if isinstance(self.engine, Spread):
            replies, tally = self.engine.pool(run.shared, replies, tally)
        if tally.arrived == len(chosen):
            round = replace(round, missing="zero")  # none is, however few stand for all of them
        bytes_down = nbytes(run.shared) * len(chosen)
        began = time.perf_counter()
        if replies:  # without any there is no step, not even one of the server's momentum
            run.shared, self.server = run.algorithm.server_update(
                round, run.shared, self.server, list(replies.values())
            )
        seconds = time.perf_counter() - began
        row: HistoryRow = {
            "round": number,
            "participants": len(chosen),
            "loss": tally.loss / tally.samples if tally.sound else None,
            f"participants_{task.metric}": Score(tally.tested, None, tally.score).figure(task),
            "seconds": tally.seconds + seconds,
            "bytes_up": tally.bytes_up,
            "bytes_down": bytes_down,
            "forward_passes": tally.forward_passes,
            "backward_passes": tally.backward_passes,
            "missing": len(chosen) - tally.answered + tally.sound - tally.arrived,
            "rejected": tally.answered - tally.sound,
            "fallbacks": tally.fallbacks,
        }
        return row, {outcome.client: outcome.state for outcome in sound}

    def evaluate(self, row: HistoryRow) -> None:
        """Test everyone with the weights as they are, and note it in the round's figures."""
        task = self.run.federation.task
        scores = self.engine.scores(self.run.shared)
        row[f"everyone_{task.metric}"] = pooled(scores, task)
        self.run.evaluations[int(row["round"] or 0)] = [score.figure(task) for score in scores]

    def warn(self, own: npt.NDArray[np.bool_]) -> None:
        """Say once what looks wrong before the first round, where the client is that sees it."""
        chosen = self._cohort(1)
        if chosen and own[chosen[0]]:
            problem = self.run.problems[chosen[0]]
            state = to(self.run.states[problem.client.id], problem.device)
            words = self.run.algorithm.warn(self._round(1, chosen), self.run.shared, state, problem)
            if words:
                warnings.warn(words, RateWarning, stacklevel=3)

    def _cohort(self, number: int) -> list[int]:
        return cohort(self.participation, len(self.run.federation), seed=self.seed, round=number)

    def _round(self, number: int, chosen: Sequence[int]) -> Round:
        federation = self.run.federation
        return Round(
            number=number,
            clients=len(federation),
            expected=self.participation.expected(len(federation)),
            samples=federation.samples,
            selected=len(chosen),
            seed=self.seed,
            missing=self.missing,
        )

    def _arrives(self, outcome: Outcome, number: int) -> bool:
        return self.network.delivers(
            samples=outcome.samples,
            passes=outcome.forward_passes + outcome.backward_passes,
            client=outcome.client,
            round=number,
            seed=self.seed,
        )
