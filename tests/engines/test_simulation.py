"""A Ray cluster gives what one process does."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

import pflego
from pflego.engines import simulation
from pflego.engines.local import LocalEngine
from pflego.engines.simulation import SimulationEngine
from pflego.exchange.compression import Compression
from pflego.exchange.transforms import Transform
from pflego.federation.roster import ClientId
from pflego.learning.problems import Problems
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.support.cases import often
from tests.support.grid import MemoryGrid, Node
from tests.support.ranks import CASES, Case, with_a_broken_client
from tests.support.reference import assert_same_weights, known, timeless

ROOT = Path(__file__).parents[2]
COMPLETE = all(find_spec(name) for name in ("flwr", "ray"))


@pytest.mark.thorough
@pytest.mark.skipif(not COMPLETE, reason="needs Flower and Ray: pip install 'pflego[simulation]'")
def test_workers_of_a_cluster_give_what_one_process_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.simulated", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    shared, states, history, evaluations, wrong = pickle.loads((tmp_path / "notes.pickle").read_bytes())
    case = CASES["renormalise"]
    alone = case.train()
    assert any(row["missing"] for row in history)
    assert_same_weights(shared, alone.shared, within=1e-12)
    for client in alone.states:
        assert_same_weights(states[client], alone.states[client], within=1e-12)
    for ours, theirs in zip(timeless(history), timeless(alone.history), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)
    assert evaluations == alone.evaluations
    assert wrong == "c2 cannot be read"
    assert 'engine = "flower-simulation"' in (tmp_path / "a" / "settings.toml").read_text()
    assert_same_weights(case.open(tmp_path / "a").shared, shared)


class InMemory:
    """A cluster in this process: Flower's messages are real, and what Ray would carry to workers is pickled once."""

    def __init__(self, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = {number: Node({}, simulation._answer) for number in range(1, workers + 1)}
        self.carried = b""
        monkeypatch.setattr(simulation, "_common", lambda _: pickle.loads(self.carried))

    def engine(
        self, problems: Problems, algorithm: pflego.Algorithm, states: Mapping[ClientId, Weights]
    ) -> SimulationEngine:
        local = LocalEngine(
            problems, algorithm, {}, self.transforms, together=False, compression=self.compression
        )
        self.carried = pickle.dumps(local)
        here = LocalEngine(problems, algorithm, states)
        return SimulationEngine(here, b"", MemoryGrid({}, self.nodes), list(self.nodes), lambda: True)

    def train(self, case: Case) -> Run:
        self.transforms: Sequence[Transform] = case.options.get("transforms", ())  # type: ignore[assignment]
        self.compression: Compression | None = case.options.get("compression")  # type: ignore[assignment]
        return case.train(engine=self.engine)


@pytest.mark.parametrize(
    "name",
    often(
        [
            "common head",
            "auto",
            "renormalise",
            "rejected",
            "own metrics",
            "private",
            "private, nobody",
            "own rule",
            "clipped",
            "quantised",
            "feedback, lossy",
            "liars",
            "two exchanges",
            "answers",
        ],
        *("auto", "private", "own rule", "feedback, lossy", "two exchanges", "answers"),
    ),
)
@pytest.mark.parametrize("workers", often([3, 1]))
def test_shares_of_a_cohort_give_what_the_whole_does(
    name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = InMemory(workers, monkeypatch)
    ours, theirs = cluster.train(CASES[name]), CASES[name].train()
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)
    for client in theirs.states:
        assert_same_weights(ours.states[client], theirs.states[client], within=1e-12)
    for own, other in zip(timeless(ours.history), timeless(theirs.history), strict=True):
        assert known(own) == pytest.approx(known(other), rel=1e-12)
    assert all(node.asked for node in cluster.nodes.values())


def test_what_fails_at_a_worker_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pflego.UserError, match="c2 cannot be read"):
        InMemory(2, monkeypatch).train(Case(pflego.PFLEGO(), federation=with_a_broken_client))


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(pflego.UserError, match=r"needs (flwr|ray): pip install 'pflego\[simulation\]'"):
        CASES["pflego"].train(engine="flower-simulation")
