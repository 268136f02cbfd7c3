"""A client at work, in a federation of which it sees nothing but its own data and what all know."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

from pflego_light.arrays import HEAD, Weights, is_finite
from pflego_light.data import Data
from pflego_light.errors import SettingError
from pflego_light.kit import Kit
from pflego_light.local_steps import LocalSteps
from pflego_light.pflego import Pflego
from pflego_light.problem import Problem, Score
from pflego_light.round import Federation, Round
from pflego_light.update import Metric


@dataclass(frozen=True)
class Outcome:
    """What came of a round's work."""

    state: Weights
    contribution: Weights
    metrics: Mapping[str, Metric]
    finite: bool  # fit for use: no infinity and no NaN in what is sent, kept or measured
    seconds: float


@dataclass(frozen=True)
class Client:
    """One client, ready to work; a federation that it cannot be part of is refused.

    Parameters
    ----------
    kit
        What `pflego kit` wrote.
    data
        Its own samples.
    federation
        What everybody knows.
    """

    kit: Kit
    data: Data
    federation: Federation

    def __post_init__(self) -> None:
        data = self.data
        self.federation.check_base(self.kit.base)
        self.federation.check(
            task=data.task, classes=data.classes, outputs=data.outputs, samples=len(data.x_train)
        )

    @cached_property
    def _method(self) -> Pflego | LocalSteps:
        return Pflego(self.kit.method) if self.kit.method["name"] == "pflego" else LocalSteps(self.kit.method)

    @cached_property
    def _problem(self) -> Problem:
        return Problem(self.kit, self.data, self.federation)

    @property
    def shared(self) -> dict[str, tuple[int, ...]]:
        """Map name to shape for what the server sends."""
        if not self.kit.spec["shares_head"]:
            return self.kit.shapes
        local = self.kit.spec["labels"] == "local" and self.federation.most_classes
        outputs = self.federation.most_classes if local else self.federation.outputs
        return {**self.kit.shapes, HEAD: (outputs, self.kit.features + 1)}

    def first(self) -> Weights:
        """Return the state of a client that was never asked before."""
        return self._method.init_state(self._problem, int(self.kit.spec["seed"]))

    def work(self, now: Round, shared: Weights, state: Weights) -> Outcome:
        """Do a round's work."""
        problem = Problem(self.kit, self.data, self.federation).at(now.seed, now.number)
        start = time.perf_counter()
        update = self._method.update(now, shared, state, problem)
        seconds = time.perf_counter() - start
        metrics: dict[str, Metric] = {
            "forward_passes": (problem.passes("forward"), "largest", 1.0),
            "backward_passes": (problem.passes("backward"), "largest", 1.0),
        }
        if now.emphasis is not None and update.joint_loss is not None:
            metrics["joint_loss"] = (update.joint_loss * now.alpha, "mean", now.alpha)
        loss = problem.loss(update.model) if update.loss is None else update.loss
        finite = is_finite(update.contribution) and is_finite(update.state) and isfinite(loss)
        finite = finite and all(isfinite(total) for total, _, _ in update.metrics.values())
        if finite:
            score = problem.test(update.model)
            metrics |= update.metrics
            metrics["loss"] = (loss * now.alpha, "mean", now.alpha)
            metrics["test"] = (score.score, "mean", score.samples)
        return Outcome(update.state, update.contribution, metrics, finite, seconds)

    def welcome(self, shared: Weights, steps: int | None) -> tuple[Weights, Weights]:
        """Give the state of a client that comes when others have trained: its first one, and that one made ready."""
        first = self.first()
        ready = self._method.welcome(shared, first, self._problem, steps)
        if not is_finite(ready):
            raise SettingError(
                "this client cannot join: its head did not stay finite; check its data's scale"
            )
        return first, ready

    def score(self, shared: Weights, state: Weights, *, adapt: bool = False) -> Score:
        """Try this client's own model on its test data; adapt: its state is first made ready for these weights."""
        if adapt:
            state = self._method.adapt(shared, state, self._problem)
        return self._problem.test(self._method.personal(shared, state, self._problem))
