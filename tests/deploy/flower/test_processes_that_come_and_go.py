"""Real processes on loopback: a site that is started late, one that is gone for good, and a server that is killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import pflego
from pflego.deploy.folder import write_app
from pflego.federation.members import Members
from tests.deploy.flower.test_equality import assert_close
from tests.deploy.flower.test_processes import LONG, kept, learned, rounds, runs
from tests.support.processes import BIN, NGINX, machines, until
from tests.support.sites import SHAPE, arrays, settle

SITES = ["clinic", "mill", "tower"]
ROUNDS = 30  # of which the site that comes late misses some ten


def members(folder: Path) -> Members:
    found = Members.load(folder / "out")
    assert found is not None
    return found


def happened(folder: Path, name: str) -> list[int]:
    """The rounds in which a client came or went."""
    population = members(folder).population
    assert population is not None
    return list(population.events(name))


def answered(folder: Path, names: list[str]) -> bool:
    """Tell whether sites have all done the round that the server has yet to write down."""
    return {kept(folder, name)[1] for name in names} == {rounds(folder) + 1}


@pytest.mark.thorough
@pytest.mark.skipif(not NGINX.exists(), reason="nginx is not installed (Debian: nginx-light)")
def test_a_federation_goes_on_with_those_who_come_and_without_those_who_go(tmp_path: Path) -> None:
    configs = settle(tmp_path, SITES)
    app = {
        "steps": 10, "rounds": ROUNDS, "seed": 5, "evaluate_every": 0, "device": "cpu", "out": str(tmp_path / "out"),
        "members": "clinic, mill", "population": '{"join": {"tower": 2}}', "wait": LONG, "reply-timeout": LONG,
        "patience": 1, "max_share": 1.0,
    }  # fmt: skip
    trial = tmp_path / "trial"
    write_app(trial, app)
    with machines(tmp_path) as hub:
        hub.start_server(trial)
        hub.start_proxy(trial)
        for name in SITES:
            hub.register(name)
        for name in ("clinic", "mill"):
            hub.start_site(name, trial, configs[name])
        until("round 3 is done without the one who is late", lambda: rounds(tmp_path) >= 3, seconds=LONG)
        hub.start_site("tower", trial, configs["tower"])
        until("it has joined", lambda: happened(tmp_path, "tower"), seconds=LONG)

        hub.kill("server")  # with SIGKILL, whether or not messages of this round have reached their sites
        [joined] = happened(tmp_path, "tower")
        assert 3 < joined < ROUNDS - 3
        hub.start_server(trial)
        until("the run has gone on", lambda: rounds(tmp_path) >= joined + 1, seconds=LONG)

        command: list[str | Path] = [
            BIN / "pflego",
            "deploy",
            "member",
            "leave",
            "mill",
            "--out",
            tmp_path / "out",
        ]
        subprocess.run(command, env=hub.env, check=True, timeout=LONG)
        until("it has left", lambda: happened(tmp_path, "mill"), seconds=LONG)
        hub.kill("mill")  # switched off
        until("a round is done", lambda: answered(tmp_path, ["clinic", "tower"]), seconds=LONG)
        hub.kill("server")
        [left] = happened(tmp_path, "mill")
        assert joined < left < ROUNDS
        hub.start_server(trial)
        until("the last round is done", lambda: rounds(tmp_path) == ROUNDS, seconds=LONG)
        until("the run is finished", lambda: "finished:completed" in runs(hub), seconds=LONG)

    whole = pflego.train(
        pflego.Federation([pflego.Client(name, **arrays(i)) for i, name in enumerate(SITES)]),
        pflego.models.build("mlp", SHAPE, seed=5),
        pflego.PFLEGO(steps=10),
        rounds=ROUNDS,
        population=members(tmp_path).population,
        seed=5,
        evaluate_every=0,
        device="cpu",
    )
    assert_close(learned(tmp_path), whole.shared)
    for name, last in [("clinic", ROUNDS), ("mill", left - 1), ("tower", ROUNDS)]:
        state, number = kept(tmp_path, name)
        assert number == last
        assert_close(state, whole.states[name])
    history = pflego.open_run(tmp_path / "out").history
    assert [row["missing"] for row in history] == [0] * ROUNDS
    assert [row["members"] for row in history] == [row["members"] for row in whole.history]
