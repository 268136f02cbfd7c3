import gzip
import sys
from pathlib import Path

import numpy as np
import pytest

from pflego import UserError
from pflego.data.own.tables import Piece, Table, read_files, suffix

pytest.importorskip("pyarrow")


def everything(names: list[str], file: Path) -> list[str]:
    return names


def read(*paths: Path) -> Table:
    return read_files({path: Piece(path.name, 0) for path in paths}, everything)


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def to_parquet(source: Path) -> Path:
    import pyarrow.csv
    import pyarrow.parquet

    path = source.with_suffix(".parquet")
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(source), path)
    return path


ROWS = [{"age": 30, "dose": 1.5, "sex": "f"}, {"age": 41, "dose": 2.25, "sex": "m"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "age,dose,sex\n30,1.5,f\n41,2.25,m\n"),
        ("a.CSV", "\n age , dose,sex \n30, 1.5,f\n\n41,2.25,m"),
        ("a.csv", "\ufeffage,dose,sex\r\n30,1.5,f\r\n41,2.25,m\r\n"),
        ("a.csv", "age;dose;sex\n30;1,5;f\n41;2,25;m\n"),
        ("a.tsv", "age\tdose\tsex\n30\t1.5\tf\n41\t2.25\tm\n"),
    ],
    ids=["commas", "blanks", "of a spreadsheet", "of a European one", "tabulators"],
)
def test_a_table_is_read_however_it_was_written(tmp_path: Path, name: str, text: str) -> None:
    assert read(written(tmp_path / name, text)).data.to_pylist() == ROWS


def test_a_compressed_table_and_parquet_hold_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path / "a.csv", "age,dose,sex\n30,1.5,f\n41,2.25,m\n")
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed).data.to_pylist() == ROWS
    assert read(to_parquet(plain)).data.to_pylist() == ROWS
    assert [suffix(path) for path in (plain, packed, tmp_path / "a.txt")] == [".csv", ".csv.gz", ""]


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.tsv", "x\ty\n1,234\t5\n"), ("a.csv", "x;y\n1,234;0.5\n"), ("a.csv", 'x,y\n"1,234",0.5\n')],
)
def test_a_comma_that_sets_off_thousands_is_not_taken_for_a_decimal_point(
    tmp_path: Path, name: str, text: str
) -> None:
    assert read(written(tmp_path / name, text)).data.to_pylist()[0]["x"] == "1,234"


def test_a_text_may_run_over_several_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'x,words\n1,"two\nlines"\n2,one\n')
    assert read(path).data.to_pylist() == [{"x": 1, "words": "two\nlines"}, {"x": 2, "words": "one"}]


def test_rows_are_called_by_their_file_and_number(tmp_path: Path) -> None:
    table = read(written(tmp_path / "a.csv", "x\n1\n2\n3\n"), written(tmp_path / "b.csv", "x\n4\n5\n"))
    assert [table.row(number) for number in (0, 2, 3, 4)] == [
        "a.csv, row 1",
        "a.csv, row 3",
        "b.csv, row 1",
        "b.csv, row 2",
    ]
    assert table.each(["a", "b"]).tolist() == ["a", "a", "a", "b", "b"]
    fewer = table.without(np.array([True, False, True, True, False])).without(np.array([True, False]))
    assert fewer.data.to_pylist() == [{"x": 5}]
    assert fewer.row(0) == "b.csv, row 2"
    assert fewer.each(["a", "b"]).tolist() == ["b"]


def test_only_the_columns_that_are_chosen_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "x,y,z\n1,2,3\n")
    for file in (path, to_parquet(path)):
        table = read_files({file: Piece("a", 0)}, lambda names, file: ["z", "x"])
        assert table.data.to_pylist() == [{"z": 3, "x": 1}]


def test_files_may_have_their_columns_in_any_order_and_whole_numbers_beside_fractions(tmp_path: Path) -> None:
    table = read(written(tmp_path / "a.csv", "x,y\n1,2\n"), written(tmp_path / "b.csv", "y,x\n0.5,3\n"))
    assert table.data.to_pylist() == [{"x": 1, "y": 2.0}, {"x": 3, "y": 0.5}]


def test_a_column_of_numbers_in_one_file_and_texts_in_another_holds_texts_as_written(tmp_path: Path) -> None:
    first = written(tmp_path / "a.csv", "code,y\n01,1\n2,2\n")
    second = written(tmp_path / "b.csv", "code,y\nx,3\n,4\n")
    for files in ([first, second], [to_parquet(first), second]):
        codes = [row["code"] for row in read(*files).data.to_pylist()]
        assert codes[1:] == ["2", "x", None]
    assert read(first, second).data.to_pylist()[0]["code"] == "01"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a.csv is empty"),
        ("x,x\n1,2\n", "has two columns called 'x'"),
        ("x,y\n1,2\n3\n", "cannot read .*a.csv: .*Expected 2 columns, got 1"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read(written(tmp_path / "a.csv", text))


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*a.parquet"):
        read(written(tmp_path / "a.parquet", "no parquet"))


def test_files_must_have_the_same_columns(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a.csv", "x,y\n1,2\n"), written(tmp_path / "b.csv", "x,z\n1,2\n")
    with pytest.raises(UserError, match=r"b.csv has no column 'y', which .*a.csv has: .*\(drop\)"):
        read(a, b)


def test_columns_that_cannot_be_joined_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for name, values in [("a", [[1.0]]), ("b", [{"p": 1}])]:
        parquet.write_table(pa.table({"x": values}), tmp_path / f"{name}.parquet")
    with pytest.raises(UserError):
        read(tmp_path / "a.parquet", tmp_path / "b.parquet")


def test_without_its_library_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"for tables: pip install 'pflego\[tables\]'"):
        read(written(tmp_path / "a.csv", "x\n1\n"))
