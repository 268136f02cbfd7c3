from pathlib import Path

import pytest

from pflego import UserError
from pflego.data.own.layout import Layout, explore, format_of, name_of


def folder(root: Path, *files: str) -> Layout:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return explore(root)


def found(layout: Layout) -> list[tuple[tuple[str, ...], bool | None]]:
    return [(place.names, place.test) for place in layout.places]


def test_a_file_is_known_by_its_name() -> None:
    names = ["a.csv", "a.CSV.gz", "a.parquet", "a.npz", "a.JPG", "a.txt", "csv"]
    assert [format_of(Path(name)) for name in names] == ["table"] * 3 + ["npz", "image", None, None]
    assert [name_of(Path(name)) for name in ("x/ward.3.csv", "b.csv.gz", "c.npz")] == ["ward.3", "b", "c"]


def test_a_client_is_called_like_its_file_and_the_folders_it_lies_in(tmp_path: Path) -> None:
    layout = folder(
        tmp_path, "b.csv", "a.parquet", "north/c.csv", ".hidden.csv", "__MACOSX/d.csv", "notes.txt"
    )
    assert found(layout) == [(("a",), None), (("b",), None), (("north", "c"), None)]
    assert (layout.format, layout.others) == ("table", 1)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (["train/a.csv", "test/a.csv", "train/b.csv"], [(("a",), True), (("a",), False), (("b",), False)]),
        (["a/train.csv", "a/test.csv"], [(("a",), True), (("a",), False)]),
        (["Training.csv", "Testing.csv"], [((), True), ((), False)]),
        (["train/a/cat/1.png", "test/a/cat/2.png"], [(("a", "cat"), True), (("a", "cat"), False)]),
        (["a/train/cat/1.png", "a/test/cat/2.png"], [(("a", "cat"), True), (("a", "cat"), False)]),
        (["train/a.csv", "train/b.csv"], [(("a",), None), (("b",), None)]),
        (["train.csv", "west.csv"], [(("train",), None), (("west",), None)]),
    ],
    ids=["above", "below", "alone", "pictures", "pictures, within", "train alone", "a client called train"],
)
def test_a_level_of_train_and_test_says_what_is_for_testing(
    tmp_path: Path, files: list[str], wanted: list[tuple[tuple[str, ...], bool | None]]
) -> None:
    assert found(folder(tmp_path, *files)) == wanted


def test_a_third_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has val beside train and test.*leave it out, or call it test"):
        folder(tmp_path, "train/a.csv", "test/a.csv", "val/a.csv")


def test_a_folder_of_two_kinds_of_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds 2 table files, 1 npz files: give each kind a folder"):
        folder(tmp_path, "a.csv", "b.csv", "c.npz")


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no CSV, Parquet, .npz or image files"):
        folder(tmp_path, "notes.txt")
