import os
from pathlib import Path

import numpy as np
import pytest

from pflego.data.sets import cache as kept
from pflego.data.sets import data_set
from tests.support.official import MNIST, Bytes, labels, pictures, write_idx


def write(folder: Path, *, seed: int = 0, rows: int = 6) -> list[Bytes]:
    arrays = [pictures(rows, 4, 5, seed=seed), labels(rows), pictures(3, 4, 5), labels(3)]
    write_idx(folder, MNIST, arrays, zipped=False)
    return arrays


def test_what_was_read_once_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = write(tmp_path)
    data_set("mnist", data_dir=tmp_path)
    monkeypatch.setattr("pflego.data.sets.idx._read", dict)  # whoever reads finds nothing
    assert np.array_equal(data_set("mnist", data_dir=tmp_path).x_train, arrays[0])


def test_the_data_folder_is_never_written_to(tmp_path: Path) -> None:
    write(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}
    data_set("mnist", data_dir=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]} == before


@pytest.mark.parametrize("rows", [6, 7])
def test_files_that_changed_are_read_again(tmp_path: Path, rows: int) -> None:
    write(tmp_path)
    data_set("mnist", data_dir=tmp_path)
    arrays = write(tmp_path, seed=9, rows=rows)
    for file in tmp_path.iterdir():
        os.utime(file, (1, 1))
    assert np.array_equal(data_set("mnist", data_dir=tmp_path).x_train, arrays[0])


@pytest.mark.parametrize("damage", ["cut", "absent"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, cache: Path, damage: str) -> None:
    arrays = write(tmp_path, rows=300_000)  # large enough to be mapped
    data_set("mnist", data_dir=tmp_path)
    [file] = cache.glob("arrays/mnist-*/x_train.npy")
    if damage == "cut":
        os.truncate(file, 5_000_000)
    else:
        file.unlink()
    assert np.array_equal(data_set("mnist", data_dir=tmp_path).x_train, arrays[0])


def test_an_npz_file_of_a_known_set_is_unpacked_into_the_cache(tmp_path: Path, cache: Path) -> None:
    x, y = pictures(6000, 28, 28), labels(6000)
    np.savez_compressed(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    found = data_set("mnist", data_dir=tmp_path)
    assert isinstance(found.x_train, np.memmap)
    assert found.x_train.dtype == np.uint8
    assert np.array_equal(found.x_train, x)
    assert len(list(cache.glob("arrays/mnist-*/*.npy"))) == 4


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = write(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PFLEGO_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="mnist is read anew each time: cannot write to"):
        found = data_set("mnist", data_dir=tmp_path)
    assert np.array_equal(found.x_train, arrays[0])
    assert np.array_equal(found.y_test, arrays[3])


def test_reading_that_fails_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path) -> None:
    write(tmp_path)
    (tmp_path / MNIST[3]).write_bytes(b"")
    with pytest.raises(ValueError, match="cannot read"):
        data_set("mnist", data_dir=tmp_path)
    assert list(cache.glob("arrays/*")) == []


def test_the_cache_is_the_systems_unless_the_environment_names_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept.cache_dir() == cache
    monkeypatch.delenv("PFLEGO_CACHE")
    assert kept.cache_dir().name == "pflego"


@pytest.mark.parametrize("place", ["mnist.npz", "mnist/mnist.npz"])
def test_the_data_folder_comes_before_the_cache(tmp_path: Path, cache: Path, place: str) -> None:
    write(cache / "mnist", rows=9)
    assert len(data_set("mnist").x_train) == 9
    (tmp_path / place).parent.mkdir(exist_ok=True)
    x, y = pictures(2, 3, 3), labels(2)
    np.savez(tmp_path / place, x_train=x, y_train=y, x_test=x, y_test=y)
    assert len(data_set("mnist", data_dir=tmp_path).x_train) == 2
