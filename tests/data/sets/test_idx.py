import gzip
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego import UserError
from pflego.data.sets import data_set
from pflego.data.sets.idx import _LABELS
from tests.support.official import EMNIST, MNIST, Bytes, idx, labels, pictures, write_emnist_zip, write_idx


def mnist_like(*, seed: int = 0) -> list[Bytes]:
    return [pictures(6, 4, 5, seed=seed), labels(6), pictures(3, 4, 5, seed=seed + 1), labels(3)]


def assert_same(name: str, folder: Path, arrays: list[Bytes]) -> None:
    found = data_set(name, data_dir=folder)
    for there, wanted in zip((found.x_train, found.y_train, found.x_test, found.y_test), arrays, strict=True):
        assert there.dtype == np.uint8
        assert np.array_equal(there, wanted)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
def test_the_four_files_of_mnist_are_read(tmp_path: Path, zipped: bool, place: str) -> None:
    write_idx(tmp_path / place, MNIST, mnist_like(), zipped=zipped)
    assert_same("mnist", tmp_path, mnist_like())


def test_fashion_mnist_has_files_of_the_same_names_in_a_folder_of_its_own(tmp_path: Path) -> None:
    write_idx(tmp_path, MNIST, mnist_like(seed=1))
    write_idx(tmp_path / "fashion-mnist", MNIST, mnist_like(seed=2))
    assert_same("mnist", tmp_path, mnist_like(seed=1))
    assert_same("fashion-mnist", tmp_path, mnist_like(seed=2))


def test_mnists_own_files_are_never_taken_for_fashion_mnist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path, MNIST, mnist_like())
    assert_same("fashion-mnist", tmp_path, mnist_like())
    monkeypatch.setitem(_LABELS, sha256(idx(labels(6))).hexdigest(), "mnist")
    with pytest.raises(UserError, match="cannot download fashion-mnist"):
        data_set("fashion-mnist", data_dir=tmp_path)


@pytest.mark.parametrize("place", ["", "emnist", "gzip", "EMNIST/raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_emnists_files_are_set_upright(tmp_path: Path, place: str, zipped: bool) -> None:
    upright = mnist_like()
    lying = [np.ascontiguousarray(a.transpose(0, 2, 1)) if a.ndim == 3 else a for a in upright]
    write_idx(tmp_path / place, EMNIST, lying, zipped=zipped)
    assert_same("emnist", tmp_path, upright)


@pytest.mark.parametrize("name", ["gzip.zip", "emnist.zip"])
def test_emnists_archive_is_read_without_unpacking_it(tmp_path: Path, name: str) -> None:
    upright = mnist_like()
    lying = [np.ascontiguousarray(a.transpose(0, 2, 1)) if a.ndim == 3 else a for a in upright]
    write_emnist_zip(tmp_path / name, lying)
    assert_same("emnist", tmp_path, upright)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_images_of_several_blocks_stay_in_order(tmp_path: Path) -> None:
    arrays = [pictures(60_000, 10, 10), labels(60_000), pictures(5, 10, 10), labels(5)]  # 6 MB
    write_idx(tmp_path, MNIST, arrays, zipped=False)
    assert_same("mnist", tmp_path, arrays)
    assert isinstance(data_set("mnist", data_dir=tmp_path).x_train, np.memmap)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it begins with nothing"),
        (b"<html>not found</html>", "it is no IDX file of bytes, it begins with 3c 68 74 6d"),
        (b"\0\0\x0d\x03" + bytes(12), "it is no IDX file of bytes"),
        (idx(pictures(6, 4, 5))[:9], "it is cut short"),
        (idx(pictures(6, 4, 5))[:-25], "it is cut short, of 6 rows 4 are there"),
        (idx(pictures(6, 4, 5)) + b"!", "more follows the 6 rows"),
        (idx(pictures(7, 4, 5)), "6 labels, but 7 images beside them"),
    ],
    ids=["empty", "html", "floats", "header", "cut", "longer", "more"],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, reason: str, zipped: bool) -> None:
    write_idx(tmp_path, MNIST, mnist_like(), zipped=zipped)
    images = tmp_path / (f"{MNIST[0]}.gz" if zipped else MNIST[0])
    images.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(UserError, match=r"cannot read .*ubyte") as error:
        data_set("mnist", data_dir=tmp_path)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("damage", ["flip", "cut", "none of it"])
def test_a_damaged_gz_file_is_named(tmp_path: Path, which: int, damage: str) -> None:
    write_idx(tmp_path, MNIST, mnist_like())
    file = tmp_path / f"{MNIST[which]}.gz"
    content = bytearray(file.read_bytes())
    content[-6] ^= 0xFF  # of the checksum at its end
    file.write_bytes(
        {"flip": bytes(content), "cut": bytes(content[:-9]), "none of it": b"PK and more"}[damage]
    )
    with pytest.raises(UserError, match=f"cannot read .*{MNIST[which]}.gz"):
        data_set("mnist", data_dir=tmp_path)


def test_an_archive_without_byclass_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "emnist.zip", "w") as archive:
        archive.writestr("gzip/emnist-letters-train-images-idx3-ubyte.gz", b"")
    with pytest.raises(UserError, match=r"emnist\.zip: it has no emnist-byclass-train-images-idx3-ubyte\.gz"):
        data_set("emnist", data_dir=tmp_path)


def test_a_file_of_four_is_not_enough(tmp_path: Path) -> None:
    write_idx(tmp_path, MNIST, mnist_like())
    (tmp_path / f"{MNIST[3]}.gz").unlink()
    with pytest.raises(UserError, match=f"Put .*t10k-labels-idx1-ubyte.gz, or mnist.npz .*, into {tmp_path}"):
        data_set("mnist", data_dir=tmp_path)


def test_labels_that_promise_more_than_labels_are_not_read(tmp_path: Path) -> None:
    """A row of four gigabytes, which a small compressed file could hold."""
    names = [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ]
    for name in names:
        sizes = [1, 2, 2] if "idx3" in name else [1, 2**32 - 1]
        header = b"\0\0\x08" + bytes([len(sizes)]) + np.array(sizes, ">u4").tobytes()
        (tmp_path / name).write_bytes(header + bytes(4))
    with pytest.raises(UserError, match="none of labels or images"):
        pflego.load("mnist", data_dir=tmp_path)
