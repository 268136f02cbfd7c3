"""Series of a watch: cut in windows that training and testing do not share, however they are on file."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego import UserError
from pflego.data.dataset import DataSet, Preparation
from pflego.data.sets import data_set

LENGTHS = [60, 45, 50, 80]
PERSON, SIDE, LABEL = [2, 1, 2, 1], [0, 1, 1, 1], [0, 1, 2, 0]


def write_packed(folder: Path) -> Path:
    """Series in which every moment has a number of its own, in all channels."""
    moments = np.arange(sum(LENGTHS), dtype=np.int16)
    np.savez(
        folder / "watch.npz",
        series=np.repeat(moments[:, None], 6, axis=1),
        scale=np.full(6, 0.5, np.float32),
        lengths=LENGTHS,
        label=LABEL,
        subject=PERSON,
        side=SIDE,
    )
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_packed(tmp_path)


def moments(x: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> list[set[int]]:
    """The numbers of the moments in each window."""
    return [{*(2 * window[:, 0]).astype(int).tolist()} for window in x]


def watch(folder: Path, **wanted: float) -> DataSet:
    return data_set("watch", data_dir=folder, wanted=Preparation(**wanted))  # type: ignore[arg-type]


@pytest.mark.parametrize(("window", "share"), [(8, 0.2), (5, 0.4), (9, 0.25)])
def test_training_and_testing_share_no_moment_and_lie_a_window_apart(
    folder: Path, window: int, share: float
) -> None:
    found = watch(folder, window=window, test_share=share)
    train, test = moments(found.x_train), moments(found.x_test)
    assert all(len(one) == window for one in [*train, *test])
    ends = np.cumsum(LENGTHS)
    for end, length in zip(ends, LENGTHS, strict=True):
        series = {*range(end - length, end)}
        trained = set().union(*(one for one in train if one <= series))
        tested = set().union(*(one for one in test if one <= series))
        assert trained
        assert tested
        assert max(trained) + window < min(tested)  # the gap
        assert max(tested) < end
        assert min(tested) >= end - int(length * share)
    assert sum(len(one) for one in test) == len(set().union(*test))  # test windows do not overlap


def test_no_window_reaches_from_one_series_into_the_next(folder: Path) -> None:
    found = watch(folder, window=8)
    borders = np.cumsum(LENGTHS)[:-1]
    for one in [*moments(found.x_train), *moments(found.x_test)]:
        assert not any({border - 1, border} <= one for border in borders)


def test_values_labels_and_owners_are_those_of_the_series(folder: Path) -> None:
    found = watch(folder, window=8)
    for x, y, person in zip(found.x_train, found.y_train, found.columns["person"][0], strict=True):
        number = int(np.searchsorted(np.cumsum(LENGTHS), 2 * x[0, 0], side="right"))
        assert (y, person) == (LABEL[number], PERSON[number])


def test_clients_are_people_or_a_person_s_sides(folder: Path) -> None:
    people = pflego.load("watch", data_dir=folder, window=8)
    assert list(people.ids) == [1, 2]
    sides = pflego.load("watch", data_dir=folder, window=8, column="side")
    assert list(sides.ids) == ["1-1", "2-0", "2-1"]
    assert people.samples == sides.samples
    assert people.source["window"] == 8


def test_a_window_that_is_too_long_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="window=10 is too long for a series of 45 moments, of which 9"):
        watch(folder, window=10)


def test_settings_of_other_sets_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="rotations does not apply to watch"):
        pflego.load("watch", data_dir=folder, rotations=2)
    with pytest.raises(UserError, match="window does not apply to digits"):
        pflego.load("digits", window=2)


def write_official(folder: Path, content: object) -> Path:
    """As the package has it: one pickled dictionary in a .npy file, in an archive."""
    held = np.empty((), object)
    held[()] = content
    file = io.BytesIO()
    np.save(file, held, allow_pickle=True)
    with tarfile.open(folder / "seglearn-1.2.5.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("seglearn-1.2.5/seglearn/data/watch_dataset.npy")
        member.size = len(file.getvalue())
        archive.addfile(member, io.BytesIO(file.getvalue()))
    return folder


def test_the_official_package_is_read_to_16_bits(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    series = [generator.normal(size=(length, 6)) for length in LENGTHS]
    official = {"X": series, "y": np.array(LABEL), "subject": np.array(PERSON), "side": np.array(SIDE, float)}
    found = watch(write_official(tmp_path, official), window=8)
    x = np.asarray(found.x_train)
    assert np.abs(x[0] - series[0][:8]).max() < np.abs(np.concatenate(series)).max() / 32_000
    assert found.columns["person"][0][0] == PERSON[0]


class Call:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("called",))


def test_a_pickle_that_calls_anything_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pickle.loads(pickle.dumps({"X": [1]})) == {"X": [1]}
    with pytest.raises(UserError, match=r"cannot read .*print"):
        watch(write_official(tmp_path, {"X": Call()}))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "damage", [{"lengths": [60, 45, 50, 81]}, {"side": [0, 1]}, {"series": np.zeros((235, 6))}]
)
def test_arrays_that_do_not_belong_together_are_refused(folder: Path, damage: dict[str, object]) -> None:
    with np.load(folder / "watch.npz") as archive:
        arrays = {**archive, **damage}
    np.savez(folder / "watch.npz", **arrays)
    with pytest.raises(UserError, match=r"cannot read .*watch\.npz"):
        watch(folder, window=8)
