"""The real data sets, where the environment names a folder of them: PFLEGO_REAL_DATA, which only these tests look at,
or PFLEGO_DATA. Figures are the published ones.
"""

import os
from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego.data.dataset import DataSet
from pflego.data.sets import data_set, find
from pflego.data.sets.catalogue import KNOWN

FOLDER = os.environ.get("PFLEGO_REAL_DATA") or os.environ.get("PFLEGO_DATA")


@pytest.fixture(scope="module", autouse=True)
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests of this file, so that a set is unpacked once."""
    return tmp_path_factory.mktemp("real")


@pytest.fixture(autouse=True)
def _in_it(once: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFLEGO_CACHE", str(once))


def real(name: str) -> DataSet:
    if not FOLDER:
        pytest.skip("PFLEGO_REAL_DATA names no folder of real data sets")
    if find(name, data_dir=FOLDER) is None:
        pytest.skip(f"{FOLDER} has no {name}")
    return data_set(name, data_dir=FOLDER)


MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.parametrize(
    ("name", "train", "test", "mean", "deviation"),
    [
        ("mnist", MNIST, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009], 0.1307, 0.3081),
        ("fashion-mnist", [6000] * 10, [1000] * 10, 0.2860, 0.3530),
    ],
)
def test_the_mnist_family(
    name: str, train: list[int], test: list[int], mean: float, deviation: float
) -> None:
    found = real(name)
    assert np.bincount(found.y_train.astype(int)).tolist() == train
    assert np.bincount(found.y_test.astype(int)).tolist() == test
    assert found.x_train.shape == (60_000, 28, 28)
    assert found.x_train.dtype == np.uint8
    assert found.x_train.view(np.uint8).mean() / 255 == pytest.approx(mean, abs=1e-4)
    assert found.x_train.view(np.uint8).std() / 255 == pytest.approx(deviation, abs=1e-4)


def test_cifar10() -> None:
    found = real("cifar10")
    assert found.x_train.shape == (50_000, 32, 32, 3)
    assert np.bincount(found.y_train.astype(int)).tolist() == [5000] * 10
    assert np.bincount(found.y_test.astype(int)).tolist() == [1000] * 10
    channels = found.x_train[::10].view(np.uint8).mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(channels, [0.4914, 0.4822, 0.4465], atol=5e-3)


def test_emnist_is_upright() -> None:
    found = real("emnist")
    assert len(np.unique(found.y_train)) == 62
    assert found.x_train.shape[1:] == (28, 28)
    # A one is a stroke from top to bottom: its ink covers more rows than columns. Lying, it would be the other way.
    ones = np.asarray(found.x_train[np.asarray(found.y_train) == 1]) > 128
    assert ones.any(axis=2).sum() > 1.5 * ones.any(axis=1).sum()


def test_omniglot() -> None:
    real("omniglot")
    assert FOLDER
    federation = pflego.load("omniglot", data_dir=FOLDER)
    assert len(federation) == 50
    assert federation.samples == 97_380
    assert sum(len(client.x_test) for client in federation) == 32_460
    assert federation.classes == list(range(1623))
    assert federation.most_classes == 55
    assert len(federation.client("Greek").classes) == 24
    assert len(federation.client("Latin").classes) == 26
    assert len(federation.client("Korean").classes) == 40


@pytest.mark.parametrize("name", ["watch", "schools", "schools-hsb82", "shakespeare"])
def test_what_is_listed_of_a_real_federation_is_so(name: str) -> None:
    if not FOLDER or find(name, data_dir=FOLDER) is None:
        pytest.skip(f"PFLEGO_REAL_DATA names no folder with {name}")
    entry = KNOWN[name]
    federation = pflego.load(name, data_dir=FOLDER)
    assert federation.samples == entry.train
    assert sum(len(client.x_test) for client in federation) == entry.test
    assert tuple(federation[0].x_train.shape[1:]) == tuple(entry.shape)
    assert len(federation.classes or []) == entry.classes
    assert f"{len(federation)} " in entry.clients


def test_no_test_window_of_the_watch_is_in_training() -> None:
    found = real("watch")
    seen = {moment.tobytes() for window in np.asarray(found.x_train) for moment in window}
    tested = [moment.tobytes() for window in np.asarray(found.x_test) for moment in window]
    assert sum(moment in seen for moment in tested) < 0.001 * len(
        tested
    )  # but for readings that recur by chance


@pytest.mark.parametrize("name", ["mnist", "emnist"])
def test_every_client_of_the_papers_partition_has_its_classes(name: str) -> None:
    real(name)
    assert FOLDER
    federation = pflego.load(name, clients=100, classes_per_client="medium", seed=1, data_dir=FOLDER)
    assert federation.classes is not None
    assert {len(client.classes) for client in federation} == {len(federation.classes) // 2}
