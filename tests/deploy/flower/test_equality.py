"""What comes of a federation on Flower is what comes of it in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pflego
from pflego.algorithms.registry import find_method
from pflego.exchange.weighting import Missing
from pflego.federation.draws import Participation
from pflego.federation.remote import NotHereError
from pflego.files import read_tensors
from pflego.learning.trunk_store import STORE
from pflego.weights import Weights
from tests.support.cases import often
from tests.support.grid import Node
from tests.support.sites import CONFIG, NAMES, SHAPE, federation, sites, train

METHODS: dict[str, dict[str, float | int | str | bool | None]] = {
    "pflego": {},
    "pflego, common head": {"common_head": True},
    "pflego, rates from the theory": {"server_lr": "auto", "server_optimizer": "sgd"},
    "fedavg": {"client_lr": 0.1},
    "fedavg, global classes": {"client_lr": 0.1, "labels": "global"},
    "fedprox": {},
    "fedper": {},
    "fedrep": {"body_steps": 2},
    "fedbabu": {},
    "fedbn": {"client_lr": 0.1},
    "ditto": {"client_lr": 0.1},
    "fedrecon": {},
    "feddbe": {"client_lr": 0.1},
    "moon": {"client_lr": 0.1},
    "fedproto": {"client_lr": 0.1},
    "fedpac": {"client_lr": 0.1, "body_steps": 2},
    "fedsgd": {"steps": None},  # left out
    "fedopt": {"server_optimizer": "yogi"},
    "fednova": {"epochs": 2, "batch_size": 8},
    "feddane": {},
    "uga": {"client_lr": 0.1},
    "perfedavg": {"client_lr": 0.1, "inner_lr": 0.1},
    "pfedme": {},
    "local": {},
    "scaffold": {"client_lr": 0.1},
    "feddyn": {"client_lr": 0.1},
    "apfl": {"client_lr": 0.1},
    "lgfedavg": {"client_lr": 0.1},
    "fedrod": {"client_lr": 0.1},
    "fedala": {"client_lr": 0.1},
}


def here(
    method: str,
    *,
    classes: bool = True,
    participation: Participation | int = 3,
    objective: str | None = None,
    aggregation: str = "mean",
    missing: Missing = "zero",
    personal: str | None = None,
    compression: str | None = None,
    lora: int | None = None,
    frozen: str | None = None,
) -> pflego.Run:
    """The same in one process."""
    own = {"steps": CONFIG["steps"], **METHODS[method]}
    return pflego.train(
        federation(classes=classes),
        pflego.models.build("mlp", SHAPE, seed=5, personal=personal, lora=lora, frozen=frozen),
        find_method(method.partition(",")[0])(
            **{name: value for name, value in own.items() if value is not None}
        ),
        rounds=4,
        participation=participation,
        objective=objective,
        aggregation=aggregation,
        missing=missing,
        compression=compression,
        seed=5,
        evaluate_every=2,
        device="cpu",
    )


def state(folder: Path, name: str, part: str = "after") -> Weights:
    """What a client's file holds."""
    [file] = (folder / name / "state").glob("*.safetensors")
    tensors, facts = read_tensors(file)
    assert facts.text("client") == name
    return {key.removeprefix(f"{part}/"): t for key, t in tensors.items() if key.startswith(f"{part}/")}


def assert_close(ours: Weights, theirs: Weights) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)


def assert_same_history(ours: pflego.Run, theirs: pflego.Run) -> None:
    for row, other in zip(ours.history, theirs.history, strict=True):
        assert row.keys() == other.keys()
        for key in row.keys() - {"seconds"}:
            assert row[key] == pytest.approx(other[key], rel=1e-4), key


@pytest.mark.parametrize("method", ["pflego", "fedavg"])
def test_personal_parts_stay_at_their_sites(method: str, tmp_path: Path) -> None:
    asked = {**METHODS[method], "model.personal": "1.bias"}
    ours = train(sites(tmp_path), tmp_path / "server", **asked, algorithm=method, participation=3)
    theirs = here(method, personal="1.bias")
    assert "1.bias" not in ours.shared
    assert_close(ours.shared, theirs.shared)
    for id in NAMES:
        assert "1.bias" in state(tmp_path, id)
        assert_close(state(tmp_path, id), theirs.states[id])


def test_adapters_alone_travel(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="the extra lora is not installed")
    asked = {"model.lora": 2, "client_lr": 0.1}
    ours = train(sites(tmp_path), tmp_path / "server", **asked, algorithm="fedavg", participation=3)
    assert set(ours.shared) == {"1.lora_A.default.weight", "1.lora_B.default.weight", "head"}
    assert_close(ours.shared, here("fedavg", lora=2).shared)


def test_a_trunk_is_passed_once_at_every_site(tmp_path: Path) -> None:
    STORE.clear()
    asked: dict[str, float | int | str | bool | None] = {"model.frozen": "all", "common_head": True}
    ours = train(sites(tmp_path), tmp_path / "server", **asked, algorithm="pflego", participation=3)
    theirs = here("pflego, common head", frozen="all")
    assert_close(ours.shared, theirs.shared)
    assert ours.history[0]["trunk_passes"] == 1
    assert not any(
        row["trunk_passes"] for row in theirs.history
    )  # the same data and trunk, in this process before


@pytest.mark.parametrize("method", often(METHODS, "pflego", "fedavg"))
def test_weights_equal_those_of_the_local_engine(method: str, tmp_path: Path) -> None:
    name = method.partition(",")[0]
    ours = train(sites(tmp_path), tmp_path / "server", **METHODS[method], algorithm=name, participation=3)
    theirs = here(method)
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
    assert ours.evaluations.keys() == {2, 4}
    for id in NAMES:
        assert_close(state(tmp_path, id), theirs.states[id])


def test_regression_too(tmp_path: Path) -> None:
    ours = train(sites(tmp_path, classes=False), tmp_path / "server", participation=3)
    theirs = here("pflego", classes=False)
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)


def test_a_servers_folder_can_be_opened_and_looked_at(tmp_path: Path) -> None:
    ours = train(sites(tmp_path), tmp_path / "server", participation=3)
    opened = pflego.open_run(tmp_path / "server")
    assert_close(opened.shared, ours.shared)
    assert opened.history == ours.history
    assert opened.evaluations == ours.evaluations
    page = opened.report(tmp_path / "report.html").read_text()
    assert all(name in page for name in NAMES)
    with pytest.raises(NotHereError, match="clinic"):
        opened.evaluate()


def test_a_site_can_hold_its_part_of_a_named_data_set(tmp_path: Path) -> None:
    nodes = {
        9 - id: Node(
            {"client-id": id, "data": "digits", "clients": 5, "state": str(tmp_path), "device": "cpu"}
        )
        for id in range(5)
    }
    ours = train(nodes, tmp_path / "server", rounds=2)
    theirs = pflego.train(
        pflego.load("digits", clients=5),
        pflego.models.build("mlp", (64,), seed=5),
        pflego.PFLEGO(steps=5),
        rounds=2,
        seed=5,
        evaluate_every=2,
        device="cpu",
    )
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)


def test_nothing_personal_is_on_the_server(tmp_path: Path) -> None:
    run = train(sites(tmp_path), tmp_path / "server", rounds=2)
    files = list((tmp_path / "server").rglob("*.safetensors"))
    names = {name for file in files for name in read_tensors(file)[0]}
    assert names
    assert not [name for name in names if "head" in name]
    assert all(run.states[name] == {} for name in NAMES)


@pytest.mark.parametrize("objective", often(["qfair:1.0", "cvar:0.5/0.3", "agnostic:0.1"]))
def test_an_objective_is_the_same_on_flower(objective: str, tmp_path: Path) -> None:
    ours = train(
        sites(tmp_path), tmp_path / "server", objective=objective, algorithm="pflego", participation=3
    )
    theirs = here("pflego", objective=objective)
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
    for id in NAMES:
        assert_close(state(tmp_path, id), theirs.states[id])
    assert abs(theirs.shared["1.weight"] - here("pflego").shared["1.weight"]).max() > 1e-4


@pytest.mark.parametrize("aggregation", ["median", "trimmed:0.3", "krum:1"])
def test_a_rule_of_aggregation_is_the_same_on_flower(aggregation: str, tmp_path: Path) -> None:
    ours = train(
        sites(tmp_path), tmp_path / "server", aggregation=aggregation, algorithm="pflego", participation=3
    )
    theirs = here("pflego", aggregation=aggregation)
    assert_close(ours.shared, theirs.shared)
    assert abs(theirs.shared["1.weight"] - here("pflego").shared["1.weight"]).max() > 1e-6


def test_chances_of_their_own_are_the_same_on_flower(tmp_path: Path) -> None:
    chances = {name: 0.4 + 0.1 * place for place, name in enumerate(NAMES)}
    process = pflego.Independent(chances)
    folder = tmp_path / "server"
    ours = train(sites(tmp_path), folder, algorithm="pflego", participation=str(process), missing="inverse")
    theirs = here("pflego", participation=process, missing="inverse")
    assert [ours.participants(t) for t in range(1, 5)] == [theirs.participants(t) for t in range(1, 5)]
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
