"""Experiments that others report: their settings are ours by name, and their figures stand beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import pflego
from pflego.algorithms.registry import methods
from pflego.cli import app
from pflego.comparison.compare import settings_for
from pflego.comparison.protocols import find_protocol, protocols
from pflego.comparison.variants import Variant
from pflego.errors import ModelError, SettingError


@pytest.mark.parametrize("name", protocols())
def test_settings_are_those_of_methods_that_are_here(name: str, tmp_path: Path) -> None:
    protocol = find_protocol(name)
    for method in methods():
        made = settings_for(method, protocol.settings, 0, tmp_path)
        assert made.value("rounds") == protocol.settings["rounds"]
    for published in protocol.published:
        assert Variant.of(published).method in methods()
    fedrep = settings_for("fedrep", protocol.settings, 0, tmp_path).algorithm
    assert isinstance(fedrep, pflego.FedRep)
    assert fedrep.batch_size == 10
    for heads_alone in (pflego.PFLEGO, pflego.FedRecon):  # at rates of their own, not at the protocol's
        made = settings_for(heads_alone.__name__, protocol.settings, 0, tmp_path)
        assert isinstance(made.algorithm, heads_alone)
        assert made.algorithm.client_lr == heads_alone().client_lr


def test_published_figures_stand_beside_ours_with_what_differs(tmp_path: Path) -> None:
    words = ["--protocol", "pfllib-fashion-2", "--algorithms", "fedavg,fedper,local", "--data", "digits"]
    words += ["--model", "mlp", "--clients", "5", "--rounds", "2", "--rates", "given", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["compare", *words], catch_exceptions=False, env={"COLUMNS": "160"})
    assert done.exit_code == 0
    page = (tmp_path / "comparison.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| fedavg"))
    assert "80.41" in row
    assert "best round" in page
    assert next(line for line in page.splitlines() if line.startswith("| local")).count("–") == 1
    settings = (tmp_path / "fedavg" / "seed-0" / "settings.toml").read_text()
    assert "batch_size = 10" in settings


def test_a_protocol_nobody_has_is_refused() -> None:
    with pytest.raises(SettingError, match="pfllib-fashion-2"):
        find_protocol("pfllib-fashion2")


@pytest.mark.parametrize("shape", [(28, 28), (32, 32, 3), (16, 20)])
def test_the_cnn_takes_images_of_any_size(shape: tuple[int, ...]) -> None:
    model = pflego.models.build("cnn", shape)
    model.check(torch.rand(3, *shape))
    assert model.features == 512


@pytest.mark.parametrize("shape", [(64,), (12, 12), (2, 28, 28, 3)])
def test_the_cnn_refuses_what_is_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="mlp"):
        pflego.models.build("cnn", shape)
