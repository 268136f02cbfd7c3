from pathlib import Path

import numpy as np
import pytest

from pflego import UserError
from pflego.data.dataset import DataSet
from pflego.data.sets import data_set
from pflego.data.sets.catalogue import KNOWN
from pflego.data.sets.embedded import EMBEDDED

KEYS = ["x_train", "y_train", "x_test", "y_test"]


def write_npz(path: Path, *, mark: float = 0.0, without: str = "") -> Path:
    """A data set of 4 + 2 samples, every input `mark`."""
    arrays = {
        "x_train": np.full((4, 3), mark),
        "y_train": np.array([0, 1, 0, 1]),
        "x_test": np.full((2, 3), mark),
        "y_test": np.array([0, 1]),
    }
    np.savez_compressed(path, **{key: array for key, array in arrays.items() if key != without})  # type: ignore[arg-type]
    return path


def read_npz(path: Path) -> DataSet:
    return data_set(str(path))


def test_digits_are_1797_images_of_64_grey_levels() -> None:
    digits = data_set("digits")
    assert digits.x_train.shape == (1438, 64)
    assert digits.x_test.shape == (359, 64)
    x = np.concatenate([digits.x_train, digits.x_test]).astype(np.float64)
    y = np.concatenate([digits.y_train, digits.y_test])
    assert x.min() == 0
    assert x.max() == 1
    assert (x * 16 == np.round(x * 16)).all()
    # The counts of the digits 0 to 9 in scikit-learn's documentation of the set.
    assert np.bincount(y.astype(np.int64)).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_are_those_that_scikit_learn_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    from_the_file = data_set("digits")
    monkeypatch.setattr(
        "pflego.data.sets.embedded.find_spec", lambda _: None
    )  # its own function then reads them
    for key in KEYS:
        assert np.array_equal(getattr(from_the_file, key), getattr(data_set("digits"), key))


def test_diabetes_are_442_patients_with_standardised_measurements_and_targets() -> None:
    diabetes = data_set("diabetes")
    assert diabetes.x_train.shape == (354, 10)
    assert diabetes.x_test.shape == (88, 10)
    assert diabetes.y_train.dtype.kind == "f"
    for train, test in [(diabetes.x_train, diabetes.x_test), (diabetes.y_train, diabetes.y_test)]:
        whole = np.concatenate([train, test]).astype(np.float64)
        np.testing.assert_allclose(whole.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(whole.std(axis=0), 1, atol=1e-6)


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_set_is_always_divided_alike_without_overlap(name: str) -> None:
    one, other = data_set(name), data_set(name)
    assert np.array_equal(one.x_test, other.x_test)
    assert np.array_equal(one.y_train, other.y_train)
    rows = [row.tobytes() for row in np.concatenate([one.x_train, one.x_test])]
    assert len(set(rows)) == len(rows)


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    found = data_set(str(write_npz(tmp_path / "own.npz", mark=5)))
    assert found.name == "own"
    assert found.x_train.tolist() == [[5, 5, 5]] * 4
    assert found.y_test.tolist() == [0, 1]


def test_the_data_folder_is_searched_before_what_is_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, mark in [("named", 1.0), ("environment", 2.0)]:
        (tmp_path / folder).mkdir()
        write_npz(tmp_path / folder / "digits.npz", mark=mark)
    assert data_set("digits", data_dir=tmp_path / "named").x_train.max() == 1
    monkeypatch.setenv("PFLEGO_DATA", str(tmp_path / "environment"))
    assert data_set("digits").x_train.max() == 2
    assert data_set("digits", data_dir=tmp_path / "named").x_train.max() == 1


def test_what_the_data_folder_lacks_is_taken_from_what_is_embedded(tmp_path: Path) -> None:
    assert len(data_set("digits", data_dir=tmp_path).x_train) == 1438


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown data set 'diabtes': did you mean 'diabetes'"):
        data_set("diabtes")


@pytest.mark.parametrize("name", EMBEDDED)
def test_what_is_listed_of_an_embedded_set_is_so(name: str) -> None:
    found, entry = data_set(name), KNOWN[name]
    assert (len(found.x_train), len(found.x_test)) == (entry.train, entry.test)
    assert found.x_train.shape[1:] == tuple(entry.shape)
    assert (0 if found.y_train.dtype.kind == "f" else len(np.unique(found.y_train))) == entry.classes


def test_another_file_of_the_data_folder_is_found_by_its_name(tmp_path: Path) -> None:
    write_npz(tmp_path / "ours.npz", mark=4)
    assert data_set("ours", data_dir=tmp_path).x_train.max() == 4


def test_columns_come_in_pairs(tmp_path: Path) -> None:
    arrays = {key: np.zeros(2) for key in [*KEYS, "lonely_train", "notes"]}
    arrays |= {"writer_train": np.array([7, 8]), "writer_test": np.array([8, 8])}
    np.savez(tmp_path / "own.npz", **arrays)  # type: ignore[arg-type]
    found = read_npz(tmp_path / "own.npz")
    assert list(found.columns) == ["writer"]
    assert [column.tolist() for column in found.columns["writer"]] == [[7, 8], [8, 8]]


def test_a_column_of_another_length_is_refused(tmp_path: Path) -> None:
    arrays = {key: np.zeros(2) for key in KEYS}
    np.savez(tmp_path / "own.npz", **arrays, w_train=np.zeros(3), w_test=np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"w_train has shape \(3,\), it needs a value for each of the 2 samples"
    ):
        read_npz(tmp_path / "own.npz")


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_array_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(UserError, match=f"own.npz has no {key}; it needs x_train, y_train, x_test, y_test"):
        read_npz(write_npz(tmp_path / "own.npz", without=key))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*absent\.npz"):
        data_set(str(tmp_path / "absent.npz"))


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **dict.fromkeys(KEYS, np.array([object()])))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"cannot read .*own\.npz"):
        read_npz(tmp_path / "own.npz")


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"x_train,y_train\n1,2\n" * 50], ids=["empty", "cut", "text"]
)
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*own\.npz"):
        read_npz(path)


def test_a_single_array_under_the_name_of_an_archive_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "own.npy", np.zeros(3))
    path = (tmp_path / "own.npy").rename(tmp_path / "own.npz")
    with pytest.raises(UserError, match=r"own\.npz"):
        read_npz(path)


@pytest.mark.parametrize("compressed", [True, False])
def test_damage_is_refused_or_harmless(tmp_path: Path, compressed: bool) -> None:
    path = write_npz(tmp_path / "own.npz", mark=0.3)
    good = read_npz(path)
    if not compressed:
        np.savez(path, **{key: getattr(good, key) for key in KEYS})
    whole = path.read_bytes()
    escaped = {}
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            found = read_npz(path)
        except UserError:
            continue
        except Exception as error:
            escaped[type(error).__name__] = f"byte {position}: {error}"
            continue
        assert all(np.array_equal(getattr(found, key), getattr(good, key)) for key in KEYS)
    assert escaped == {}


def test_an_archive_cut_short_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cannot read .*own\.npz"):
        read_npz(path)
