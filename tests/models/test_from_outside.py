"""A backbone of one's own on the command line: module:function."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import pflego
from pflego import models
from pflego.cli import app

CODE = """
from torch import nn

def small():
    return nn.Sequential(nn.Linear(64, 7), nn.Tanh())

def sized(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 9), nn.ReLU())

def wrong():
    return nn.Unflatten(1, (8, 8))

def nothing():
    return 3

def narrow():
    return nn.Linear(5, 2)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_networks.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "features"), [("small", 7), ("sized", 9)])
def test_a_function_gives_the_backbone_and_its_features_are_counted(name: str, features: int) -> None:
    model = models.build(f"my_networks:{name}", (64,), seed=1)
    assert model.features == features
    assert model.fingerprint() == models.build(f"my_networks:{name}", (64,), seed=1).fingerprint()
    assert model.fingerprint() != models.build(f"my_networks:{name}", (64,), seed=2).fingerprint()
    assert model.source["model"] == f"my_networks:{name}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_networks:absent", "absent"),
        ("no_such_module:small", "no_such_module"),
        (":small", "module:function"),
        ("my_networks:nothing", "must give a torch.nn.Module, not int"),
        ("my_networks:wrong", r"must map a batch to \(samples, features\)"),
        ("my_networks:narrow", r"cannot take a sample of shape \(64,\)"),
    ],
)
def test_what_is_no_backbone_is_refused(name: str, words: str) -> None:
    with pytest.raises(pflego.UserError, match=words):
        models.build(name, (64,))


def test_it_runs_from_the_command_line(tmp_path: Path) -> None:
    words = [
        "run",
        "--model",
        "my_networks:small",
        "--rounds",
        "2",
        "--clients",
        "5",
        "--out",
        str(tmp_path / "r"),
    ]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert 'model = "my_networks:small"' in (tmp_path / "r" / "settings.toml").read_text()


def test_every_data_set_has_its_usual_backbone() -> None:
    assert [models.usual(data) for data in ("mnist", "cifar10", "omniglot", "mine.npz")] == [
        "mlp",
        "cifar-cnn",
        "omniglot-conv4",
        "mlp",
    ]
