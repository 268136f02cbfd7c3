"""A run that learned nothing says so, and the server's own step is checked like everybody's work."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import pflego
from pflego.algorithms.registry import method
from pflego.cli import app
from pflego.exchange.round import Round, Update
from pflego.learning.problem import Problem
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.training.loop import NothingLearnedWarning
from pflego.weights import Weights
from tests.support.afterwards import numbers
from tests.support.reference import StopAfter, assert_identical, world

LARGE = 1e25  # its square is beyond float32


class Loud:
    """Scales what one client sends in one round beyond what squares of float32 can hold."""

    def __init__(self, client: str, number: int) -> None:
        self.client, self.number = client, number

    def __repr__(self) -> str:
        return f"Loud({self.client}, {self.number})"

    def __call__(self, contribution: Weights, now: Round, client: object) -> Weights:
        size = LARGE if (client, now.number) == (self.client, self.number) else 1.0
        return {name: tensor * size for name, tensor in contribution.items()}


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_step_of_the_server_that_is_not_finite_is_not_taken(optimizer: str) -> None:
    twin = world(dtype=torch.float32)
    algorithm = pflego.PFLEGO(steps=3, server_optimizer=optimizer)
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=6, transforms=[Loud("c1", 3)])
    assert [row["refused"] for row in run.history] == [0, 0, 1, 0, 0, 0]
    before = pflego.train(twin.federation, twin.model, algorithm, rounds=2)
    during = pflego.train(twin.federation, twin.model, algorithm, rounds=3, transforms=[Loud("c1", 3)])
    assert all(torch.equal(during.shared[name], before.shared[name]) for name in before.shared)
    later = [run.shared[name] for name in run.shared]
    assert all(bool(w.isfinite().all()) for w in later)
    assert any(not torch.equal(run.shared[name], during.shared[name]) for name in run.shared)  # it goes on


class Poison(pflego.Callback):
    def on_round(self, run: Run, row: HistoryRow) -> None:
        if row["round"] == 2:
            run.shared = {name: w * float("nan") for name, w in run.shared.items()}


def test_weights_that_a_callback_spoils_are_no_result(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    algorithm = pflego.PFLEGO(steps=3)
    with pytest.raises(pflego.UserError, match="callback Poison"):
        pflego.train(twin.federation, twin.model, algorithm, rounds=5, out=tmp_path, callbacks=[Poison()])
    resumed = pflego.train(twin.federation, twin.model, algorithm, rounds=5, out=tmp_path, resume=True)
    assert_identical(resumed, pflego.train(twin.federation, twin.model, algorithm, rounds=5))


@method
class Exploding(pflego.FedAvg):
    """Some clients send what is no number."""

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        update = super().client_update(now, shared, state, problem)
        if problem.client.id not in ("c1", "c2"):
            return update
        sent = {name: tensor * float("inf") for name, tensor in update.contribution.items()}
        return Update(update.state, sent, loss=1.0)


def test_rejected_clients_are_known_by_name_also_after_an_interruption(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)

    def train(rounds: int, **options: object) -> Run:
        return pflego.train(
            twin.federation, twin.model, Exploding(steps=2, labels="global"), rounds=rounds, out=tmp_path, **options  # type: ignore[arg-type]
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        train(5, callbacks=[StopAfter(3)])
    run = train(5, resume=True)
    assert run.rejected == {"c1": 5, "c2": 5}
    assert run.learned
    opened = pflego.open_run(
        tmp_path, federation=twin.federation, model=twin.model, algorithm=Exploding(steps=2, labels="global")
    )
    assert opened.rejected == run.rejected


def test_a_run_in_which_nothing_moved_warns() -> None:
    twin = world(dtype=torch.float32)
    some = pflego.Federation([twin.federation[1], twin.federation[2]])
    with pytest.warns(NothingLearnedWarning, match="nothing was learned"):
        run = pflego.train(some, twin.model, Exploding(steps=2, labels="global"), rounds=3)
    assert not run.learned
    with warnings.catch_warnings():
        warnings.simplefilter("error", NothingLearnedWarning)
        pflego.train(twin.federation, twin.model, Exploding(steps=2, labels="global"), rounds=1)


def test_the_command_says_so_and_does_not_end_with_success(tmp_path: Path) -> None:
    data = numbers(tmp_path, "small")
    words = ["run", "--data", data, "--clients", 3, "--steps", 2, "--rounds", 2, "--device", "cpu"]
    words += ["--algorithm", "fedavg", "--client-lr", 1e30, "--out", tmp_path / "a"]
    with pytest.warns(NothingLearnedWarning):
        result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 1, result.stderr
    assert "updates were not finite" in result.stdout
    assert "all 3 updates rejected" in result.stderr
