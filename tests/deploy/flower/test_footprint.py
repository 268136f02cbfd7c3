"""A client's process is started afresh for every message: it loads what its work needs, and nothing of the server's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import pflego
from pflego.deploy.flower.messages import pack, payload
from tests.deploy.flower.test_client import COMMON, ROUND
from tests.support.sites import CONFIG, SHAPE, sites

# What it prints: pflego's modules after the import of the ClientApp, and after a round.
CLIENT = """
import json, sys
from pathlib import Path

def loaded():
    return sorted(name for name in sys.modules if name.split(".")[0] == "pflego")

from pflego.deploy.flower.client import app
stages = [loaded()]

from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
data = Path(sys.argv[1]).read_bytes()
content = RecordDict({"payload": ArrayRecord({"payload": Array("uint8", (len(data),), "pflego", data)})})
context = Context(1, 1, json.loads(sys.argv[2]), RecordDict(), json.loads(sys.argv[3]))
reply = app(Message(content, 1, MessageType.TRAIN), context)
assert not reply.has_error()
stages.append(loaded())
print(json.dumps([*stages, sorted({name.split(".")[0] for name in sys.modules})]))
"""

ELSEWHERE = {  # the rooms above the engines: they are for people, and for whoever leads a training
    "pflego.advice", "pflego.after", "pflego.cli", "pflego.comparison", "pflego.paper", "pflego.report", "pflego.runs",
    "pflego.settings", "pflego.trackers", "pflego.training", "pflego.tuning",
}  # fmt: skip
OF_THE_SERVER = {
    "pflego.deploy.flower.app_config", "pflego.deploy.flower.engine", "pflego.deploy.flower.gathering",
    "pflego.deploy.flower.membership", "pflego.deploy.flower.roll", "pflego.deploy.flower.server",
    "pflego.deploy.folder", "pflego.deploy.requests", "pflego.federation.members", "pflego.federation.network",
    "pflego.federation.participation", "pflego.federation.population", "pflego.federation.remote",
}  # fmt: skip
OTHER_ENGINES = {"pflego.engines.distributed", "pflego.engines.peers", "pflego.engines.simulation"}
LARGE = {
    "matplotlib",
    "mlflow",
    "pandas",
    "plotly",
    "pyarrow",
    "ray",
    "sklearn",
    "tensorboard",
    "wandb",
}


class Loaded(NamedTuple):
    """What was loaded, by name."""

    before: list[str]  # of pflego's modules, by the import of the ClientApp
    after: list[str]  # after a round
    libraries: list[str]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Play a round of PFLEGO in an interpreter of its own."""
    folder = tmp_path_factory.mktemp("site")
    shared = pflego.models.build("mlp", SHAPE, seed=5).weights()
    (folder / "question").write_bytes(payload(pack(shared, {"round": ROUND, "federation": COMMON})))
    config = sites(folder)[998].config
    words = [str(folder / "question"), json.dumps(config), json.dumps(CONFIG)]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, *words], capture_output=True, text=True, timeout=120, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert list(Path(str(config["state"])).iterdir())  # the round was really played
    return Loaded(*json.loads(done.stdout.splitlines()[-1]))


def test_rooms_above_the_engines_stay_closed(loaded: Loaded) -> None:
    assert "pflego.algorithms.pflego.algorithm" in loaded.after
    assert not {".".join(name.split(".")[:2]) for name in loaded.after} & ELSEWHERE


def test_nothing_of_the_server_is_loaded(loaded: Loaded) -> None:
    assert not set(loaded.after) & (OF_THE_SERVER | OTHER_ENGINES)


def test_no_other_method_is_loaded(loaded: Loaded) -> None:
    shared = ("base", "registry", "statistics")  # which every method has in common
    common = {"pflego.algorithms", *(f"pflego.algorithms.{name}" for name in shared)}
    assert {name for name in loaded.before if name.startswith("pflego.algorithms")} == common
    methods = {name for name in loaded.after if name.startswith("pflego.algorithms.")} - common
    assert {name.split(".")[2] for name in methods} == {"pflego", "optimizers", "stepping"}


def test_large_libraries_stay_unloaded(loaded: Loaded) -> None:
    assert not set(loaded.libraries) & LARGE


def test_a_round_needs_half_of_the_package_at_most(loaded: Loaded) -> None:
    """Most of it are the readers of data: 35 modules, of which a site needs some."""
    whole = len(list(Path(pflego.__file__).parent.rglob("*.py")))
    assert len(loaded.before) <= len(loaded.after) < whole / 2
