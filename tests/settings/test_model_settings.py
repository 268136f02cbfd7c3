"""What of a model is personal and what becomes of batch norm, as settings: in files, folders, exports, on Flower."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import pflego
from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.desk import Desk, rehearse
from pflego.deploy.flower.facts import Common, Facts
from pflego.deploy.folder import write_app
from pflego.settings.experiment import Experiment
from pflego.settings.tables import Settings
from tests.support.cases import often

QUICK: dict[str, Any] = {"clients": 6, "rounds": 2, "steps": 3, "device": "cpu"}


@pytest.mark.parametrize("given", [["1.bias", "head"], "1.bias,head"])
def test_personal_parts_are_a_setting_that_a_run_remembers(given: object, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = Experiment.build({**QUICK, "personal": given, "out": str(folder)}).train()
    assert set(run.shared) == {"1.weight"}
    assert set(run.states[1]) == {"1.bias", "head"}
    assert tomllib.loads((folder / "settings.toml").read_text())["model"]["personal"] == "1.bias, head"
    again = pflego.open_run(folder)
    assert again.model.personal_names == ("1.bias",)
    x = run.federation[0].x_test
    assert torch.equal(again.personal_model(1)(x), run.personal_model(1)(x))
    again.export(1, tmp_path / "exported", formats=["safetensors"])
    assert torch.equal(pflego.load_model(tmp_path / "exported")(x), run.personal_model(1)(x))
    Experiment.build(Settings.read(folder / "settings.toml").changed(rounds=3)).train(resume=True)


def test_a_run_does_not_go_on_with_another_division(tmp_path: Path) -> None:
    settings = {**QUICK, "personal": "1.bias", "out": str(tmp_path)}
    Experiment.build(settings).train()
    with pytest.raises(pflego.UserError, match="personal was"):
        Experiment.build({**settings, "rounds": 3, "personal": "1.weight"}).train(resume=True)


def test_an_app_for_flower_has_them_as_a_text(tmp_path: Path) -> None:
    write_app(tmp_path / "app", {"rounds": 2, "personal": ["1.bias", "head"]})
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["personal"] == "1.bias, head"
    asked = AppConfig.read(config)
    for model in (asked.model((4,)), asked.assignment.model((4,))):
        assert model.personal_names == ("1.bias",)
        assert model.personal_head


def test_fingerprints_tell_divisions_apart() -> None:
    made = [pflego.models.build("mlp", (4,), personal=p) for p in (None, "1.bias", "1.weight", "head")]
    assert len({model.fingerprint() for model in made}) == 4


NET = """
from math import prod

from torch import nn


def net(shape):
    layers = [nn.Linear(prod(shape), 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(nn.Flatten(), *layers)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backbone of somebody's own."""
    name = f"nets_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return f"{name}:net"


@pytest.mark.parametrize("norm", often(["frozen", "group", "personal", "averaged"], "personal"))
def test_the_rule_for_batch_norm_is_a_setting_that_a_run_remembers(
    norm: str, nets: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    chosen = {"model": nets, "norm": norm, "algorithm": "fedavg", "batch_size": 16, "client_lr": 0.1}
    run = Experiment.build({**QUICK, **chosen, "out": str(folder)}).train()
    moving = {"2.running_mean", "2.running_var"}
    assert (moving <= set(run.shared)) == (norm == "averaged")
    assert (moving <= set(run.states[0])) == (norm == "personal")
    again = pflego.open_run(folder, trust=True)
    assert again.model.norm == norm
    x = run.federation[0].x_test
    assert torch.equal(again.personal_model(0)(x), run.personal_model(0)(x))
    again.export(0, tmp_path / "exported")
    loaded = pflego.load_model(tmp_path / "exported", trust=True)
    assert torch.equal(loaded(x), run.personal_model(0)(x))
    cost = run.cost()
    assert cost is not None
    joined = again.join(pflego.Client("late", *_some(run)), alone=0)
    assert joined.run.states["late"].keys() == run.states[0].keys()


def _some(run: pflego.Run) -> tuple[torch.Tensor, torch.Tensor]:
    return run.federation[0].x_train, run.federation[0].y_train


def test_the_first_statistics_are_those_of_the_module(nets: str) -> None:
    model = pflego.models.build(nets, (5,), norm="averaged")
    assert model.batch_norms["2"].training
    assert torch.equal(model.weights()["2.running_var"], torch.ones(20))


@pytest.mark.parametrize("norm", ["personal", "averaged"])
def test_a_site_on_flower_follows_the_rule(norm: str, nets: str) -> None:
    config = {"rounds": 1, "algorithm": "fedavg", "model.name": nets, "model.norm": norm, "batch-size": 4}
    assignment = AppConfig.read(config).assignment
    client = pflego.Client("here", torch.rand(9, 5), torch.arange(9) % 3)
    facts = Facts.of(client, None)
    common = Common(
        "one",
        clients=1,
        samples=facts.samples,
        task=facts.task,
        classes=facts.classes,
        most_classes=3,
        outputs=facts.outputs,
        schema=facts.schema,
    )
    [played] = rehearse(Desk.of(assignment, client, common, None, device="cpu"))
    moved = {"2.running_mean", "2.running_var"}
    assert (moved <= set(played.contribution)) == (norm == "averaged")
    assert (moved <= set(played.state)) == (norm == "personal")
