import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from pflego import UserError
from pflego.data.sets import data_set
from tests.support.official import (
    CIFAR_BATCHES,
    Bytes,
    cifar_binary,
    cifar_pickle,
    labels,
    pictures,
    write_tar,
)

VERSIONS = {
    "cifar-10-batches-bin": (cifar_binary, ".bin", "cifar-10-binary.tar.gz"),
    "cifar-10-batches-py": (cifar_pickle, "", "cifar-10-python.tar.gz"),
}


def batches() -> dict[str, tuple[Bytes, Bytes]]:
    """Two images in each of the five training batches, three in the test batch."""
    return {
        name: (pictures(count, 32, 32, 3, seed=k), labels(count) + np.uint8(k))
        for k, name in enumerate(CIFAR_BATCHES)
        for count in [3 if name == "test_batch" else 2]
    }


def written(version: str) -> dict[str, bytes]:
    encode, ending, _ = VERSIONS[version]
    return {f"{name}{ending}": encode(*batch) for name, batch in batches().items()}


def assert_read(folder: Path) -> None:
    found = data_set("cifar10", data_dir=folder)
    train, test = list(batches().values())[:5], batches()["test_batch"]
    assert np.array_equal(found.x_train, np.concatenate([x for x, _ in train]))
    assert np.array_equal(found.y_train, np.concatenate([y for _, y in train]))
    assert np.array_equal(found.x_test, test[0])
    assert np.array_equal(found.y_test, test[1])
    assert found.x_train.dtype == found.y_train.dtype == np.uint8


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("inside", ["", "cifar10", "FOLDER", "cifar10/FOLDER"])
def test_batches_are_read_from_a_folder(tmp_path: Path, version: str, inside: str) -> None:
    folder = tmp_path / inside.replace("FOLDER", version)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in written(version).items():
        (folder / name).write_bytes(content)
    assert_read(tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("reverse", [False, True])
def test_batches_are_read_from_an_archive_in_any_order(tmp_path: Path, version: str, reverse: bool) -> None:
    files = sorted(written(version).items(), reverse=reverse)
    write_tar(
        tmp_path / VERSIONS[version][2],
        {f"{version}/{name}": content for name, content in files} | {"readme": b""},
    )
    assert_read(tmp_path)


def test_a_pickle_that_calls_something_else_is_refused_and_not_called(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "called"),)

    for name, content in written("cifar-10-batches-py").items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({"data": Evil(), "labels": []}, protocol=2))
    with pytest.raises(
        UserError, match=r"data_batch_3: it wants to call posix\.mkdir|data_batch_3: .*nt\.mkdir"
    ):
        data_set("cifar10", data_dir=tmp_path)
    assert not (tmp_path / "called").exists()


def test_a_batch_cut_short_is_named(tmp_path: Path) -> None:
    for name, content in written("cifar-10-batches-bin").items():
        (tmp_path / name).write_bytes(content)
    with (tmp_path / "test_batch.bin").open("ab") as file:
        file.truncate(3000)
    with pytest.raises(UserError, match=r"cannot read .*test_batch\.bin: its length"):
        data_set("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_archive_without_a_batch_is_refused(tmp_path: Path, version: str) -> None:
    files = written(version)
    absent = files.popitem()[0]
    write_tar(tmp_path / VERSIONS[version][2], files)
    with pytest.raises(UserError, match=rf"tar\.gz: it has no {absent}"):
        data_set("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_damaged_archive_is_refused(tmp_path: Path, version: str) -> None:
    archive = tmp_path / VERSIONS[version][2]
    write_tar(archive, written(version))
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(UserError, match=r"cannot read .*tar\.gz"):
        data_set("cifar10", data_dir=tmp_path)
