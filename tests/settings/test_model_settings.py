"""What of a model is personal, as a setting: in files and folders, on the command line, for export and Flower."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import pflego
from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.folder import write_app
from pflego.settings.experiment import Experiment
from pflego.settings.tables import Settings

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
