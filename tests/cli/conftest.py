from __future__ import annotations

from pathlib import Path

import pytest

from pflego.algorithms.registry import methods
from pflego.settings.experiment import Experiment
from tests.support.afterwards import WARDS, numbers, patients
from tests.support.cases import often


def train(folder: Path, data: Path, **settings: object) -> Path:
    """Leave a finished run in a folder."""
    quick: dict[str, object] = {"rounds": 4, "device": "cpu"}
    if settings.get("algorithm") != "fedsgd":  # which takes one step, whatever else is said
        quick["steps"] = 6
    Experiment.build({"data": str(data), **quick, **settings, "out": str(folder)}).train()
    return folder


@pytest.fixture(scope="session")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a table: clients called by their wards, classes by name."""
    folder = tmp_path_factory.mktemp("wards")
    table = patients(folder / "patients.csv", WARDS, seed=0)
    return train(folder / "run", table, column="ward", label="diagnosis")


@pytest.fixture(scope="session")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a .npz file: clients and classes are numbers."""
    folder = tmp_path_factory.mktemp("arrays")
    return train(folder / "run", numbers(folder, "small"), clients=4, participation="2")


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a regression."""
    folder = tmp_path_factory.mktemp("sums")
    return train(folder / "run", numbers(folder, "sums", regression=True), clients=3)


@pytest.fixture(scope="session", params=often(methods(), "pflego", "fedavg"))
def of_every_method(
    arrays: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """A finished run of one method after the other."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    data = arrays.parent / "small.npz"
    return train(folder, data, clients=4, rounds=2, algorithm=request.param)
