"""Real processes on loopback, behind the proxy, under TLS with node keys: a light site, a full one, and a kill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego.after.kit import write_kit
from pflego.deploy.folder import write_app
from tests.deploy.flower.test_equality import assert_close
from tests.deploy.flower.test_processes import LONG, begin_again, kept, learned, rounds, runs
from tests.support.processes import NGINX, machines, until
from tests.support.sites import SHAPE, arrays

SITES = ["clinic", "mill"]  # full, light
ROUNDS = 5
SOURCES = [Path(pflego.__file__).parents[1], Path(__file__).parents[2] / "light" / "src"]


def libraries(pid: int) -> str:
    """What a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.thorough
@pytest.mark.skipif(not NGINX.exists(), reason="nginx is not installed (Debian: nginx-light)")
def test_a_light_site_beside_a_full_one_survives_its_death(tmp_path: Path) -> None:
    configs: dict[str, dict[str, str | Path]] = {}
    for position, name in enumerate(SITES):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "own.npz", **arrays(position))  # type: ignore[arg-type]
        folder = tmp_path / name
        configs[name] = {"client-id": name, "data": folder / "own.npz", "state": folder / "state"}
    app = {
        "steps": 10, "rounds": ROUNDS, "seed": 5, "evaluate_every": 0, "device": "cpu", "out": str(tmp_path / "out"),
        "members": ", ".join(SITES), "wait": LONG, "reply-timeout": LONG, "patience": 1,
    }  # fmt: skip
    trial, algorithm = tmp_path / "trial", pflego.PFLEGO(steps=10)
    write_app(trial, app)
    model = pflego.models.build("mlp", SHAPE, seed=5)
    kit = write_kit(tmp_path / "kit", model, algorithm, torch.zeros(4, *SHAPE), seed=5).folder

    with machines(tmp_path) as hub:
        hub.env["PYTHONPATH"] = ":".join(map(str, SOURCES))

        def start() -> None:
            hub.start_site("mill", kit, configs["mill"], light=True)

        hub.start_server(trial)
        hub.start_proxy(trial)
        for name in SITES:
            hub.register(name)
        hub.start_site("clinic", trial, {**configs["clinic"], "device": "cpu"})
        start()
        until("round 1 is done", lambda: rounds(tmp_path) >= 1, seconds=LONG)
        mapped = [libraries(pid) for pid in hub.pids_of("mill")]
        assert any("onnxruntime" in maps for maps in mapped)
        assert not any("libtorch" in maps for maps in mapped)

        hub.kill("mill")  # with SIGKILL, wherever it was
        hub.kill("server")  # before it can go on without it
        assert rounds(tmp_path) < ROUNDS
        hub.start_server(trial)  # it waits for everybody
        begin_again(hub, "mill", start)
        until("the last round is done", lambda: rounds(tmp_path) == ROUNDS, seconds=LONG)
        until("the run is finished", lambda: "finished:completed" in runs(hub), seconds=LONG)

    whole = pflego.train(
        pflego.Federation([pflego.Client(name, **arrays(i)) for i, name in enumerate(SITES)]),
        model,
        algorithm,
        rounds=ROUNDS,
        seed=5,
        evaluate_every=0,
        device="cpu",
    )
    assert_close(learned(tmp_path), whole.shared)
    for name in SITES:
        state, last = kept(tmp_path, name)
        assert last == ROUNDS
        assert_close(state, whole.states[name])
