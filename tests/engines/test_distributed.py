"""Two real processes give what one does."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import pflego
from pflego.cli import app
from pflego.engines.distributed import dealt
from pflego.engines.peers import Peers
from pflego.exchange.aggregation import Aggregation
from pflego.exchange.round import Round, Update
from pflego.learning.evaluation import Row
from pflego.learning.problem import Problem
from pflego.runs.folder import RunFolder
from pflego.runs.history import HistoryRow
from pflego.weights import Weights
from tests.support import ranks
from tests.support.ranks import CASES, LONG, ROUNDS, Case, FolderNotes, Notes
from tests.support.reference import assert_identical, assert_same_weights, known, timeless

ROOT = Path(__file__).parents[2]
PROCESSES = 2
ALWAYS = {
    "pflego", "common head", "fedbabu", "fedpac", "local", "one client", "lossy", "renormalise", "rejected",
    "own metrics", "median", "own rule for sums", "clipped", "feedback, lossy", "private", "private, nobody",
    "independent, inverse", "population", "agnostic", "two exchanges", "answers",
}  # fmt: skip

pytestmark = pytest.mark.slow  # every fixture starts processes


def torchrun(*words: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={PROCESSES}", "-m", *words]


@dataclass
class Told:
    """What the processes have noted, by rank, and where they wrote."""

    notes: list[dict[str, Any]]
    folder: Path

    def __getitem__(self, name: str) -> list[Any]:
        return [notes[name] for notes in self.notes]


def cases(names: Iterable[str]) -> list[Any]:
    """One case for every way through the code by `make test`, all of them by `make thorough`."""
    return [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.thorough) for name in names]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Told:
    folder = tmp_path_factory.mktemp("ranks")
    played = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    names = [name for name in CASES if name in ALWAYS or name in played]
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    np.savez(folder / "own.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    done = subprocess.run(
        torchrun("tests.support.ranks", str(folder), *names),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return Told(
        [pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) for rank in range(PROCESSES)], folder
    )


@pytest.mark.parametrize("name", cases(CASES))
def test_two_processes_give_what_one_does(told: Told, name: str) -> None:
    alone = CASES[name].train()
    notes: list[Notes] = told[name]
    for each in notes:
        assert_same_weights(each.shared, alone.shared, within=1e-12)
        for client, state in each.held.items():
            assert_same_weights(state, alone.states[client], within=1e-12)
        for row, other in zip(timeless(each.history), timeless(alone.history), strict=True):
            assert known(row) == pytest.approx(known(other), rel=1e-12)
        assert each.evaluations.keys() == alone.evaluations.keys()
        for number, figures in alone.evaluations.items():  # sums of two processes are rounded otherwise
            for ours, theirs in zip(each.evaluations[number], figures, strict=True):
                assert ours == (theirs if theirs is None else pytest.approx(theirs, rel=1e-12))
    assert notes[0].evaluations == notes[1].evaluations
    assert_same_weights(notes[0].shared, notes[1].shared)


MEANT: dict[str, Callable[[list[HistoryRow]], bool]] = {
    "lossy": lambda history: any(row["missing"] for row in history),
    "private": lambda history: any(row["missing"] for row in history),
    "private, nobody": lambda history: not all(row["participants"] for row in history),
    "renormalise": lambda history: any(row["missing"] for row in history),
    "renormalise, all arrive": lambda history: not any(row["missing"] for row in history),
    "rejected": lambda history: all(row["rejected"] == 1 for row in history),
    "one client": lambda history: [row["participants"] for row in history] == [1] * ROUNDS,
    "common head": lambda history: len({row["participants"] for row in history}) > 1,
    "median, auto, lossy": lambda history: any(row["missing"] for row in history),
}


@pytest.mark.parametrize("name", cases(MEANT))
def test_the_cases_are_what_they_are_meant_to_be(told: Told, name: str) -> None:
    assert MEANT[name](told[name][0].history)


@pytest.mark.parametrize("name", cases(CASES))
def test_a_round_is_one_all_reduce_and_a_few_words(told: Told, name: str) -> None:
    """Sums go in one all-reduce per exchange; under a rule that looks at each contribution, all are exchanged."""
    case = CASES[name]
    rule = case.options.get("aggregation", pflego.Mean())
    assert isinstance(rule, Aggregation)
    evaluations, agreeing = 1, 2  # everyone at the end; words before the first round and after the last
    for notes in told[name]:
        arrived = [
            row
            for row in notes.history
            if (row["participants"] or 0) > (row["missing"] or 0) + (row["rejected"] or 0)
        ]
        sums = len(arrived) * case.algorithm.exchanges if rule.additive and name != "local" else 0
        exchanges = ROUNDS * case.algorithm.exchanges
        assert dict(notes.calls) == {
            "all_reduce": sums + evaluations,
            "all_gather_object": exchanges + agreeing,
        }


def test_a_metric_of_ones_own_is_in_the_history_of_every_process(told: Told) -> None:
    for notes in told["own metrics"]:
        for number, row in enumerate(notes.history, 1):
            cohort = CASES["own metrics"].cohort(number)
            assert row["samples_seen"] == sum(7 + 5 * position for position in cohort)
            assert row["most_classes"] == max(2 + position % 3 for position in cohort)
            assert (row["head_norm"] or 0) > 0


def test_a_process_holds_the_states_of_its_own_clients_only(told: Told) -> None:
    for case in ("lossy", "rejected"):
        zero, one = (set(notes.held) for notes in told[case])
        assert not zero & one
        assert abs(len(zero) - len(one)) <= 1
        assert len(zero | one) == {"lossy": 7, "rejected": 60 - 1}[case]


def assert_same_rows(ours: list[Row], theirs: list[Row]) -> None:
    for own, other in zip(ours, theirs, strict=True):
        assert own["id"] == other["id"]
        assert {**own, "id": 0} == pytest.approx({**other, "id": 0}, rel=1e-12)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_every_state_can_be_read_from_the_folder(told: Told, where: str) -> None:
    case = CASES["pflego"]
    alone = case.train()
    notes: list[FolderNotes] = told[f"folder, {where}"]
    for each in notes:
        for client in alone.states:
            assert_same_weights(each.states[client], alone.states[client], within=1e-12)
        assert_same_rows(each.evaluated, alone.evaluate())
    visited = {client for number in range(1, ROUNDS + 1) for client in alone.participants(number)}
    in_memory = [each.held for each in notes]
    assert set().union(*in_memory) == (visited if where == "memory" else set())
    assert not set.intersection(*in_memory)
    opened = case.open(told.folder / where)
    assert_same_weights(opened.shared, alone.shared, within=1e-12)
    assert [row["round"] for row in opened.history] == [1, 2, 3, 4]


def test_only_the_first_process_calls_back(told: Told) -> None:
    zero, one = told["folder, memory"]
    assert zero.heard == [1, 2, 3, 4]
    assert one.heard == []


def test_the_servers_file_is_replaced_when_all_states_are_there(told: Told) -> None:
    """A kill at any other moment then leaves either the old checkpoint whole, or the new one."""
    zero, one = told["folder, memory"]
    servers = [(began, ended) for name, began, ended in zero.written if name == "server.safetensors"]
    assert len(servers) == ROUNDS
    assert all("server" not in name for name, *_ in one.written)
    checked = 0
    for number, (began, _) in enumerate(servers, 1):
        for name, _, ended in [*zero.written, *one.written]:
            if name.startswith(f"{number:08}-"):
                assert ended <= began
                checked += 1
    assert checked == sum(name != "server.safetensors" for name, *_ in [*zero.written, *one.written]) > ROUNDS


def test_processes_that_were_given_different_things_do_not_begin(told: Told) -> None:
    zero, one = told["other seed"]
    assert "seed was 0, is now 1" in one
    assert "another process of this run has ended" in zero
    assert "the model's starting weights are not the same" in told["other weights"][1]


def test_an_error_in_one_process_ends_the_others_too(told: Told) -> None:
    assert sorted(told["broken client"]) == [
        "another process of this run has ended, or does not answer",
        "c2 cannot be read",
    ]


def test_without_a_folder_a_state_is_where_its_client_is(told: Told) -> None:
    zero, one = told["state elsewhere"]
    assert zero.keys() == one.keys()
    for client in zero:
        words = [answer for answer in (zero[client], one[client]) if answer is not None]
        assert len(words) == 1
        assert f"the state of client {client!r} is in another process: give the run a folder" in words[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_killed_run_goes_on_with_any_number_of_processes(told: Told, tmp_path: Path) -> None:
    server = multiprocessing.get_context("forkserver")  # has torch already, so that a process begins at once
    server.set_forkserver_preload(["tests.support.ranks", "pflego.learning.heads.kernel", "torch._dynamo"])

    def start() -> Sequence[BaseProcess]:
        port = free_port()
        processes = [
            server.Process(target=ranks.train_long, args=(rank, port, tmp_path / "a"))
            for rank in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        return processes

    metrics = tmp_path / "a" / "metrics.jsonl"
    rng = random.Random(0)
    for rounds in (5, 35):
        processes = start()
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < rounds:
            assert all(process.is_alive() for process in processes)
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
    stopped = RunFolder(tmp_path / "a").load()
    assert stopped is not None
    assert 30 < stopped.round < 60
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    for process in start():
        process.join(timeout=120)
        assert process.exitcode == 0
    whole, two = LONG.open(told.folder / "whole"), LONG.open(tmp_path / "a")
    assert_identical(two, whole)
    assert two.evaluations == whole.evaluations

    one = LONG.train(out=tmp_path / "b")
    assert_same_weights(one.shared, whole.shared, within=1e-9)
    for client in whole.states:
        assert_same_weights(one.states[client], whole.states[client], within=1e-9)
    for ours, theirs in zip(timeless(one.history), timeless(whole.history), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)
    assert 'engine = "local"' in (tmp_path / "b" / "settings.toml").read_text()


def test_only_the_first_process_prints(told: Told) -> None:
    zero, one = told["printed"]
    assert "pflego, 3 clients, 2 rounds" in zero
    assert "results in runs/own-pflego" in zero
    assert one == ""
    assert [path.name for path in (told.folder / "runs").iterdir()] == ["own-pflego"]
    assert (told.folder / "runs" / "own-pflego" / "report.html").exists()


@pytest.mark.thorough
def test_what_all_processes_got_wrong_is_said_once(tmp_path: Path) -> None:
    done = subprocess.run(
        torchrun("pflego", "run", "--engine", "distributed", "--algorithm", "fedavgg"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1  # torchrun's own
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("pflego: ")]
    assert len(lines) == 1
    assert "unknown algorithm 'fedavgg': did you mean 'fedavg'?" in lines[0]


def test_without_torchrun_it_says_how_to_start() -> None:
    with pytest.raises(
        pflego.UserError, match="torchrun --nproc-per-node 2 -m pflego run --engine distributed"
    ):
        CASES["pflego"].train(engine="distributed")


def test_of_processes_that_do_not_know_each_other_none_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, ["run", "--clients", "5", "--rounds", "1"])
    assert isinstance(result.exception, pflego.UserError)
    assert "torchrun has started 2 processes: with --engine distributed they train together" in str(
        result.exception
    )


@pytest.fixture
def _one_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the only one that torchrun started."""
    for key, value in {
        "RANK": 0,
        "WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
    }.items():
        monkeypatch.setenv(key, str(value))


@pytest.mark.usefixtures("_one_of_one")
@pytest.mark.parametrize("name", cases(["pflego", "auto", "renormalise"]))
def test_one_process_of_torchrun_is_alone(name: str) -> None:
    threads = torch.get_num_threads()
    ours, theirs = CASES[name].train(engine="distributed"), CASES[name].train()
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)
    assert_same_rows(ours.evaluate(), theirs.evaluate())
    assert not torch.distributed.is_initialized()
    assert torch.get_num_threads() == threads


@dataclass(frozen=True, kw_only=True)
class Counting(pflego.FedPer):
    """Sends a number beside the differences."""

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        update = super().client_update(now, shared, state, problem)
        return replace(update, contribution={**update.contribution, "samples": torch.tensor(problem.samples)})


@dataclass(frozen=True, kw_only=True)
class Discounting(Counting):
    """And takes it out again at the server, which keeps what it came to."""

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        differences = {name: aggregate[name] for name in shared}
        shared, server = super().server_step(now, shared, server, differences)
        return shared, {**server, "samples": aggregate["samples"]}


@pytest.mark.usefixtures("_one_of_one")
@pytest.mark.parametrize("rule", [pflego.Mean(), pflego.Median()], ids=repr)
def test_what_is_sent_beside_shared_weights_is_the_servers_business(
    rule: Aggregation, tmp_path: Path
) -> None:
    options = {"aggregation": rule, "participation": 7, "out": tmp_path / "a"}
    ours = Case(Discounting(steps=3)).train(engine="distributed", **options)
    theirs = Case(Discounting(steps=3)).train(aggregation=rule, participation=7)
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)
    kept = RunFolder(tmp_path / "a").load()
    assert kept is not None
    sizes = np.array([7 + 5 * i for i in range(7)])
    expected = sizes @ sizes / sizes.sum() if rule == pflego.Mean() else np.median(sizes)
    assert float(kept.server["samples"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.usefixtures("_one_of_one")
@pytest.mark.parametrize("engine", ["distributed", "local"])
def test_without_a_word_from_the_server_it_is_refused(engine: str) -> None:
    with pytest.raises(pflego.SettingError, match="counting sends samples, which are no shared weights"):
        Case(Counting(steps=3)).train(engine=engine)


class Rank(Peers):
    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 7))
def test_clients_are_dealt_out_evenly(sizes: list[int], size: int) -> None:
    own = np.stack([dealt(np.array(sizes), Rank(rank, size)) for rank in range(size)])  # (ranks, clients)
    assert (own.sum(axis=0) == 1).all()
    assert np.ptp(own.sum(axis=1)) <= 1
    assert np.ptp(own @ np.array(sizes)) <= max(sizes)
