from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pflego
from pflego.engines.base import Gathered, Turn, Work
from pflego.federation.remote import RemoteFederation
from pflego.learning.evaluation import Score
from pflego.runs.history import HistoryRow
from pflego.runs.summary import Evaluation, Summary
from pflego.weights import Weights
from tests.support.reference import world


class AskedError(Exception):
    """Somebody evaluated everyone although it was not needed."""


class Refusing:
    """An engine that must not be asked."""

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        raise AskedError

    def pool(self, gathered: Gathered) -> Gathered:
        raise AskedError

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        raise AskedError


def trained(rounds: int = 2, evaluate_every: int | None = 1) -> pflego.Run:
    twin = world(dtype=torch.float32)
    return pflego.train(
        twin.federation, twin.model, pflego.PFLEGO(steps=2), rounds=rounds, evaluate_every=evaluate_every
    )


def row(round: int, **more: float | None) -> HistoryRow:
    usual: HistoryRow = {
        "round": round,
        "participants": 5,
        "loss": 1.0 / round,
        "participants_accuracy": 0.5,
        "seconds": 0.25,
        "bytes_up": 100,
        "bytes_down": 200,
        "forward_passes": 3,
        "backward_passes": 2,
    }
    return {**usual, **more}


def test_figures_are_those_of_the_history_and_of_the_last_evaluation() -> None:
    run = trained()
    empty = row(3, participants=0, loss=None, participants_accuracy=None, forward_passes=0, backward_passes=0)
    run.history = [
        row(1),
        row(2, participants_accuracy=0.75),
        {**empty, "everyone_accuracy": 0.8, "everyone_adapted_accuracy": 0.9},
    ]
    run.evaluations = {1: [0.0] * 5, 3: [1.0, 0.5, None, 0.75, 0.75]}
    run.engine = Refusing()
    came_to = Summary.of(run)
    assert came_to == Summary(
        algorithm="pflego",
        clients=5,
        rounds=3,
        metric="accuracy",
        higher_is_better=True,
        everyone=0.8,
        everyone_adapted=0.9,
        client_mean=0.75,
        ceiling=None,
        spread=pytest.approx(0.03125**0.5),  # type: ignore[arg-type]  # (0.25² + 0.25² + 0 + 0) / 4
        worst_tenth=0.5,
        gini=pytest.approx(1.5 / (4 * 3)),  # type: ignore[arg-type]  # differences of the six pairs, over n times the sum
        participants=0.625,
        loss=0.5,
        forward_passes=3,  # the last cohort was empty
        backward_passes=2,
        bytes_up=300,
        bytes_down=600,
        seconds_a_round=0.25,
        seconds=0.75,
    )


def test_a_run_that_stopped_between_evaluations_is_evaluated_once_more() -> None:
    run = trained(rounds=3, evaluate_every=1)
    wanted = Evaluation.of(run)
    assert wanted is not None
    del run.evaluations[3], run.history[2]["everyone_accuracy"]
    assert Evaluation.of(run) == wanted
    run.engine = Refusing()
    with pytest.raises(AskedError):
        Evaluation.of(run)


def test_who_came_after_the_last_round_is_evaluated_too(tmp_path: Path) -> None:
    run = trained()
    late = pflego.Client(
        "late", torch.randn(9, 6), torch.arange(9) % 2, torch.randn(4, 6), torch.arange(4) % 2
    )
    joined = run.join(late, alone=0).run
    evaluation = Evaluation.of(joined)
    assert evaluation is not None
    assert len(evaluation.figures) == 6
    assert evaluation.figures[5] is not None
    assert evaluation.figures[:5] == run.evaluations[2]


def test_a_federation_that_is_not_to_be_evaluated_is_not() -> None:
    run = trained(evaluate_every=None)
    run.engine = Refusing()
    assert Evaluation.of(run) is None
    assert Summary.of(run).everyone is None
    assert Summary.of(run).spread is None
    assert Summary.of(run).worst_tenth is None


def test_data_elsewhere_are_not_evaluated() -> None:
    run = trained(rounds=2, evaluate_every=1)
    del run.evaluations[2]
    here = run.federation
    away = RemoteFederation(here.ids, sizes=here.sizes, classes=here.classes, outputs=here.outputs)
    run.problems = replace(run.problems, federation=away)
    run.engine = Refusing()
    evaluation = Evaluation.of(run)
    assert evaluation is not None
    assert evaluation.round == 1
    assert evaluation.everyone == run.history[0]["everyone_accuracy"]
