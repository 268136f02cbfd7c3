"""A Ray cluster gives what one process does."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import pflego
from tests.engines.ranks import CASES
from tests.reference import assert_same_weights, timeless

ROOT = Path(__file__).parents[2]
COMPLETE = all(find_spec(name) for name in ("flwr", "ray"))


@pytest.mark.skipif(not COMPLETE, reason="needs Flower and Ray: pip install 'pflego[simulation]'")
def test_workers_of_a_cluster_give_what_one_process_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engines.simulated", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    shared, states, history, evaluations, wrong = pickle.loads((tmp_path / "notes.pickle").read_bytes())
    case = CASES["renormalise"]
    alone = case.train()
    assert any(row["missing"] for row in history)
    assert_same_weights(shared, alone.shared, within=1e-12)
    for id in alone.states:
        assert_same_weights(states[id], alone.states[id], within=1e-12)
    for ours, theirs in zip(timeless(history), timeless(alone.history), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)
    assert evaluations == alone.evaluations
    assert wrong == "c2 cannot be read"
    assert 'engine = "flower-simulation"' in (tmp_path / "a" / "settings.toml").read_text()
    assert_same_weights(case.open(tmp_path / "a").shared, shared)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(pflego.UserError, match=r"needs (flwr|ray): pip install 'pflego\[simulation\]'"):
        CASES["pflego"].train(engine="flower-simulation")
