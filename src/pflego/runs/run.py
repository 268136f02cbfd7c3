"""What training leaves: weights, states, history, and what can be asked of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pflego.algorithms.base import Algorithm
from pflego.engines.base import Engine
from pflego.engines.local import LocalEngine
from pflego.errors import path_of
from pflego.federation.roster import Client, ClientId, Federation
from pflego.learning.evaluation import Pooled, Row, Score, table
from pflego.learning.model import Model, PersonalModel
from pflego.learning.problems import Problems
from pflego.runs.history import Evaluations, HistoryRow, moved
from pflego.runs.plan import Plan
from pflego.runs.record import Tables
from pflego.weights import Weights, to

if TYPE_CHECKING:
    from pflego.after.export import Exported, Format
    from pflego.after.joining import Joined
    from pflego.runs.cost import Cost


def members_only(run: Run, number: int, scores: Sequence[Score]) -> list[Score]:
    """Leave out the results of those who are no members in a round."""
    if isinstance(scores, Pooled):
        return scores
    if run.plan.population is None:
        return list(scores)
    there = run.plan.there(max(1, number), run.federation.ids).tolist()
    return [score if here else Score(0, None, 0.0) for score, here in zip(scores, there, strict=True)]


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
        One dictionary per round: round, participants (how many), loss (over the participants, after their last
        step), participants_accuracy, everyone_accuracy and, if asked for, everyone_adapted_accuracy (where evaluated),
        seconds (client and server work),
        bytes_up, bytes_down, forward_passes and backward_passes (over its own data, that a participant made),
        trunk_passes (the same through a frozen trunk whose outputs are kept, where there is one),
        members, joined and left (where a population changes: how many there are, came and went),
        missing (replies that did not arrive), rejected (participants whose update was not finite, left out),
        refused (1 where the server's own step was not finite and was not taken), and what
        the method itself measures, such as fallbacks (participants whose head steps went uphill).
        In regression, rmse takes the place of accuracy. None where there is nothing to say: nobody took part,
        or nobody who did has test data.
    evaluations
        By the rounds where everyone was evaluated: every client's accuracy (rmse), in the order of the federation.
    rejected
        How often each client's update was left out as not finite.
    silent
        How often each client was asked and its reply did not arrive.
    """

    problems: Problems
    algorithm: Algorithm
    plan: Plan
    shared: Weights
    states: Mapping[ClientId, Weights]
    settings: Tables
    engine: Engine
    history: list[HistoryRow] = field(default_factory=list)
    evaluations: Evaluations = field(default_factory=dict)
    folder: Path | None = None
    rejected: Counter[ClientId] = field(default_factory=Counter)
    silent: Counter[ClientId] = field(default_factory=Counter)

    @property
    def learned(self) -> bool:
        """Whether anything arrived in any round that the server could use."""
        return any(moved(row) for row in self.history)

    @property
    def federation(self) -> Federation:
        """Who holds which data."""
        return self.problems.federation

    @property
    def model(self) -> Model:
        """What is shared and what is personal."""
        return self.problems.model

    def evaluate(self, adapt: bool = False) -> list[Row]:
        """Try every client's model on its own test data, one row per client.

        Parameters
        ----------
        adapt
            Let each client first take the local steps that a participant takes before it is judged. Nothing is
            stored.
        """
        return table(self.federation.ids, self.scores(adapt=adapt), self.federation.task)

    def scores(self, *, adapt: bool = False) -> list[Score]:
        """Give every client's test result, in the order of the federation."""
        return self.engine.scores(self.shared, adapt=adapt)

    def participants(self, number: int) -> list[ClientId]:
        """Name those who were asked to take part in a round, drawn again from the seed."""
        drawn = self.plan.cohort(number, self.federation.ids)
        return [self.federation.ids[position] for position in drawn]

    def personal_model(self, client: ClientId, *, adapt: bool = False) -> PersonalModel:
        """Build a client's own model, backbone and head, as a module.

        adapt: the client first takes its local head steps against the present backbone. Nothing is stored.
        """
        problem = self.problems[self.federation.position(client)]
        engine = LocalEngine(self.problems, self.algorithm, self.states)
        weights = engine.personal(self.shared, problem, adapt=adapt)
        return self.model.personal(weights, problem.outputs, problem.classes)

    def join(
        self,
        client: Client,
        *,
        steps: int | None = None,
        alone: int | None = None,
        out: str | Path | None = None,
    ) -> Joined:
        """Let a new client in: it gets a head for the backbone as it is, and takes part from the next round on.

        The run itself stays as it is; the one with the client in it is in what is given. A run's folder is enlarged
        too, so that training goes on with everybody: `train(joined.run.federation, ..., resume=True)`.

        Parameters
        ----------
        client
            Who comes, with data like the others'.
        steps
            Steps on its own part, the backbone frozen; None: until more of them would hardly lower its loss.
        alone
            Rounds that the client trains alone, by the same method, to compare with; None: as many as a client of
            the run took part in on average, but at most 20; 0: none.
        out
            A folder for the enlarged run, instead of the run's own.
        """
        from pflego.after.joining import enlarged, join

        federation = enlarged(self.federation, client)
        return join(
            self, federation, steps=steps, alone=alone, out=None if out is None else path_of("out", out)
        )

    def export(
        self,
        client: ClientId,
        folder: str | Path,
        *,
        formats: Sequence[Format] = ("safetensors", "torch", "onnx"),
        adapt: bool = False,
    ) -> Exported:
        """Write a client's own model as files that need neither the run nor its data.

        `pflego.load_model(folder)` reads them again.

        Parameters
        ----------
        client
            Whose model.
        folder
            Where to.
        formats
            "safetensors" (weights, beside a JSON file that says what they are), "torch" (torch.export) and "onnx".
        adapt
            Let the client first take its local head steps against the present backbone.
        """
        from pflego.after.export import export

        return export(self, client, path_of("folder", folder), formats=formats, adapt=adapt)

    def cost(self, client: ClientId | None = None) -> Cost:
        """Measure what a round costs a client with the present weights: the one of median size, if none is named."""
        from pflego.runs.cost import client_cost, median_client

        position = median_client(self.federation) if client is None else self.federation.position(client)
        state = to(self.states[self.federation[position].id], self.problems.device)
        exchange = self.plan.exchange(self.algorithm, self.federation)
        return client_cost(
            exchange, self.problems, position, self.shared, state, compression=self.plan.compression
        )

    def report(self, path: str | Path, *, alone: bool | None = None) -> Path:
        """Write a page to look at: curves, clients and cost, in one HTML file that opens offline.

        alone: whether to try how every client would do without the others, which takes about as long as the run did;
        None: if that is quick.
        """
        from pflego.report import write_report

        return write_report([self], path_of("path", path), alone=alone)
