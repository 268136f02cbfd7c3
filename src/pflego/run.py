"""What training leaves: weights, states, history, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pflego.algorithms.base import Algorithm
from pflego.checkpoint import Evaluations, HistoryRow, Settings
from pflego.engines.base import Engine
from pflego.engines.local import LocalEngine
from pflego.evaluation import Row, Score
from pflego.federation import ClientId, Federation
from pflego.model import Model, PersonalModel
from pflego.participation import cohort, parse
from pflego.problem import Problems
from pflego.weights import Weights, to

if TYPE_CHECKING:
    from pflego.cost import Cost


@dataclass
class Run:
    """A training run.

    Attributes
    ----------
    shared
        The server's weights, by the backbone's own parameter names.
    states
        Each client's own state, by its id. "head" is (K_i, M + 1): the bias in the last column, rows in
        ascending order of the client's classes.
    history
        A dictionary a round: round, participants (how many), loss (over the participants, after their last
        step), participants_accuracy, everyone_accuracy (where evaluated), seconds (client and server work),
        bytes_up, bytes_down, forward_passes and backward_passes (over its own data, that a participant made),
        missing (replies that did not arrive), rejected (participants whose update was not finite, left out) and
        fallbacks (participants whose head steps went uphill).
        In regression, rmse takes the place of accuracy. None where there is nothing to say: nobody took part,
        or nobody who did has test data.
    evaluations
        By the rounds where everyone was evaluated: every client's accuracy (rmse), in the order of the federation.
    """

    problems: Problems
    algorithm: Algorithm
    shared: Weights
    states: Mapping[ClientId, Weights]
    settings: Settings
    engine: Engine
    history: list[HistoryRow] = field(default_factory=list)
    evaluations: Evaluations = field(default_factory=dict)
    folder: Path | None = None

    @property
    def federation(self) -> Federation:
        """Who holds which data."""
        return self.problems.federation

    @property
    def model(self) -> Model:
        """What is shared and what is personal."""
        return self.problems.model

    def evaluate(self, adapt: bool = False) -> list[Row]:
        """Try every client's model on its own test data, a row a client.

        Parameters
        ----------
        adapt
            Let each client first take its local head steps against the present backbone, as it would before
            using it. Nothing is stored.
        """
        metric = self.federation.task.metric
        rows: list[Row] = []
        for id, score in zip(self.federation.ids, self.scores(adapt=adapt), strict=True):
            row: Row = {"id": id, "samples": score.samples, "loss": score.loss}
            row[metric] = score.figure(self.federation.task)  # type: ignore[literal-required]
            rows.append(row)
        return rows

    def scores(self, *, adapt: bool = False) -> list[Score]:
        """Give every client's test result, in the order of the federation."""
        return self.engine.scores(self.shared, adapt=adapt)

    def participants(self, round: int) -> list[ClientId]:
        """Who was asked to take part in a round, drawn again from the seed."""
        process, seed = parse(str(self.settings["participation"])), int(str(self.settings["seed"]))
        drawn = cohort(process, len(self.federation), seed=seed, round=round)
        return [self.federation.ids[position] for position in drawn]

    def personal_model(self, id: ClientId) -> PersonalModel:
        """Build a client's own model, backbone and head, as a module."""
        problem = self.problems[self.federation.position(id)]
        weights = LocalEngine(self.problems, self.algorithm, self.states).personal(self.shared, problem)
        return self.model.personal(weights, problem.outputs, problem.classes)

    def cost(self, id: ClientId | None = None) -> Cost:
        """Measure what a round costs a client with the present weights: the one of median size, if none is named."""
        from pflego.cost import client_cost, median_client

        position = median_client(self.federation) if id is None else self.federation.position(id)
        client = self.federation[position]
        return client_cost(
            self.problems,
            position,
            self.algorithm,
            self.shared,
            to(self.states[client.id], self.problems.device),
            expected=parse(str(self.settings["participation"])).expected(len(self.federation)),
        )

    def report(self, path: str | Path) -> Path:
        """Write a page to look at: curves, clients and cost, in one HTML file that opens offline."""
        from pflego.report import write_report

        return write_report(self, Path(path))
