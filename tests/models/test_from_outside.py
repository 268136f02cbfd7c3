"""A backbone of one's own on the command line: module:function."""

from __future__ import annotations

import tomllib
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

def optional(hidden=5):
    return nn.Linear(64, hidden)

def wrong():
    return nn.Unflatten(1, (8, 8))

def nothing():
    return 3

def narrow():
    return nn.Linear(5, 2)

class Pair(nn.Module):
    def forward(self, x):
        return x, x

def batch():
    return nn.Sequential(nn.Linear(64, 7), nn.BatchNorm1d(7))

def failing(shape):
    raise RuntimeError("weights.pt is not here\\nnor there")

def greedy(shape, width):
    return nn.Linear(64, width)

SEVEN = 7
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_networks.py").write_text(CODE)
    (tmp_path / "broken.py").write_text("def small(:")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "features"), [("small", 7), ("sized", 9), ("optional", 5)])
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
        (":small", "module:Name"),
        ("my_networks:nothing", "must give a torch.nn.Module, not int"),
        ("my_networks:wrong", r"must map a batch to \(samples, features\)"),
        ("my_networks:narrow", r"cannot take samples of shape \(64,\): RuntimeError: mat1 and mat2"),
        ("my_networks:Pair", r"must map a batch to \(samples, features\), not to a tuple"),
        ("my_networks:failing", r"my_networks:failing failed: \w+: weights.pt is not here$"),
        ("my_networks:greedy", "missing 1 required positional argument: 'width'"),
        ("my_networks:SEVEN", "SEVEN' is no function that gives a backbone"),
        ("broken:small", "model 'broken:small': .*; it must be module:Name"),
    ],
)
def test_what_is_no_backbone_is_refused(name: str, words: str) -> None:
    with pytest.raises(pflego.UserError, match=words):
        models.build(name, (64,))


def test_layers_that_need_a_batch_are_refused_by_name() -> None:
    federation = pflego.load("digits", clients=5)
    model = models.build("my_networks:batch", (64,))
    with pytest.raises(pflego.UserError, match=r"BatchNorm1d \(1\) is in training mode"):
        model.check(federation[0].x_train[:8])


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
    settings = tomllib.loads((tmp_path / "r" / "settings.toml").read_text())
    assert settings["model"]["name"] == "my_networks:small"


def test_every_data_set_has_its_usual_backbone() -> None:
    assert [models.usual(data) for data in ("mnist", "cifar10", "omniglot", "mine.npz")] == [
        "mlp",
        "cifar-cnn",
        "omniglot-conv4",
        "mlp",
    ]
