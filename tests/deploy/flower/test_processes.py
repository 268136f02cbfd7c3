"""Real processes on loopback, under TLS with node keys: sites and server are killed, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego.deploy.folder import write_app
from pflego.deploy.own_model import own_run
from pflego.files import read_tensors
from pflego.weights import Weights
from tests.deploy.flower.test_equality import assert_close
from tests.support.processes import Machines, machines, until
from tests.support.sites import SHAPE, arrays

SITES = ["clinic", "mill"]
LONG = 600.0  # seconds for what is done in ten on an idle machine


def kept(folder: Path, name: str) -> tuple[Weights, int]:
    """A site's state, and the round that it is of; round 0 before the first."""
    files = list((folder / name / "state").glob("*.safetensors"))
    if not files:
        return {}, 0
    tensors, facts = read_tensors(files[0])
    state = {key.removeprefix("after/"): t for key, t in tensors.items() if key.startswith("after/")}
    return state, facts.whole("round", least=1)


def rounds(folder: Path) -> int:
    """How many rounds the server has written down."""
    file = folder / "out" / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def runs(hub: Machines) -> list[str]:
    """What Flower says of its runs, the newest first."""
    told = json.loads(hub.flwr("list", "hub", "--format", "json"))
    return [run["status"] for run in told["runs"]]


def begin_again(hub: Machines, name: str, config: dict[str, str | Path]) -> None:
    """Start a site until the server takes it: as long as it counts the one that was killed as alive, it does not."""

    def accepted() -> bool:
        if "SuperNode ID" in hub.log(name)[before:]:
            return True
        if not hub.alive(name):
            hub.start_site(name, config)
        return False

    before = len(hub.log(name))
    hub.start_site(name, config)
    until(f"{name} is back", accepted, seconds=LONG)


@pytest.mark.slow
def test_a_federation_survives_the_death_of_a_site_and_of_its_server(tmp_path: Path) -> None:
    configs: dict[str, dict[str, str | Path]] = {}
    for position, name in enumerate(SITES):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "own.npz", **arrays(position))  # type: ignore[arg-type]
        configs[name] = {
            "client-id": name,
            "data": tmp_path / name / "own.npz",
            "state": tmp_path / name / "state",
            "device": "cpu",
        }
    app = {
        "steps": 10, "rounds": 3, "seed": 5, "evaluate_every": 0, "device": "cpu", "out": str(tmp_path / "out"),
        "members": ", ".join(SITES), "wait": LONG, "reply-timeout": LONG,
    }  # fmt: skip
    write_app(tmp_path / "trial", app)
    with machines(tmp_path) as hub:
        hub.start_server()
        for name in SITES:
            hub.register(name)
            hub.start_site(name, configs[name])
        hub.flwr("run", tmp_path / "trial", "hub")
        until("round 1 is done", lambda: rounds(tmp_path) >= 1, seconds=LONG)

        hub.kill("mill")  # with SIGKILL, in round 2
        head, at = kept(tmp_path, "mill")
        until("a site has done round 2", lambda: kept(tmp_path, "clinic")[1] == 2, seconds=LONG)
        hub.kill("server")  # with SIGKILL, before the checkpoint of round 2
        assert rounds(tmp_path) == 1

        hub.start_server()
        hub.flwr("run", tmp_path / "trial", "hub")  # the same again: it goes on with round 2

        hub.new_key("stranger")
        hub.start_site("stranger", {**configs["mill"], "state": tmp_path / "stranger"})
        hub.start_site_in_the_clear("plain")
        assert hub.ended_with("stranger", seconds=LONG) != 0
        assert hub.ended_with("plain", seconds=LONG) != 0
        for name in ("stranger", "plain"):
            assert "SuperNode ID" not in hub.log(name)
            assert "Failed to initialize the connection" in hub.log(name)
        assert at == 1
        assert_close(kept(tmp_path, "mill")[0], head)  # nobody has touched it since

        begin_again(hub, "mill", configs["mill"])
        until("round 3 is done", lambda: rounds(tmp_path) == 3, seconds=LONG)
        until("the run is finished", lambda: "finished:completed" in runs(hub), seconds=LONG)

    whole = pflego.train(
        pflego.Federation([pflego.Client(name, **arrays(i)) for i, name in enumerate(SITES)]),
        pflego.models.build("mlp", SHAPE, seed=5),
        pflego.PFLEGO(steps=10),
        rounds=3,
        seed=5,
        evaluate_every=0,
        device="cpu",
    )
    tensors, _ = read_tensors(tmp_path / "out" / "checkpoint" / "server.safetensors")
    shared = {key.removeprefix("shared/"): t for key, t in tensors.items() if key.startswith("shared/")}
    assert_close(shared, whole.shared)
    for name in SITES:
        state, last = kept(tmp_path, name)
        assert last == 3
        assert_close(state, whole.states[name])
        config = " ".join(f'{key}="{value}"' for key, value in configs[name].items())
        model = own_run(tmp_path / "trial", config).personal_model(name)  # what the site uses from now on
        assert_close(dict(model.named_parameters()), dict(whole.personal_model(name).named_parameters()))
