"""New data, read as those were that a model was trained on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import pflego
from pflego import Federation, UserError
from pflego.data.schema import Samples, Schema, schema_of

HEAD = "site,age,ward,flag,y"
ROWS = ["a,1,u,true,no", "a,3,v,false,yes", "b,5,01,true,yes", "b,7,u,false,no"]


@pytest.fixture
def trained(tmp_path: Path) -> Schema:
    pytest.importorskip("pyarrow")
    path = tmp_path / "train.csv"
    path.write_text("\n".join([HEAD, *ROWS]))
    return schema_of(pflego.load(path, column="site", test_share=0))


def table(tmp_path: Path, *rows: str, head: str = HEAD) -> Path:
    (tmp_path / "new.csv").write_text("\n".join([head, *rows]))
    return tmp_path / "new.csv"


def read(schema: Schema, path: Path) -> Samples:
    samples = schema.read(path)
    assert len(samples.x) == len(samples.rows)
    return samples


class TestTable:
    def test_gives_what_training_had(self, trained: Schema, tmp_path: Path) -> None:
        whole = pflego.load(tmp_path / "train.csv", column="site", test_share=0)
        samples = read(trained, tmp_path / "train.csv")
        np.testing.assert_array_equal(samples.x, torch.cat([client.x_train for client in whole]).numpy())
        assert samples.y is not None
        assert samples.y.tolist() == [0, 1, 1, 0]
        assert list(samples.clients or []) == ["a", "a", "b", "b"]
        assert list(samples.rows) == [1, 2, 3, 4]

    def test_columns_may_be_in_any_order_and_labels_and_clients_absent(
        self, trained: Schema, tmp_path: Path
    ) -> None:
        path = table(tmp_path, "x,u,3,TRUE", "y,new,11,False", head="other,ward,age,flag")
        samples = read(trained, path)
        assert samples.y is None
        assert samples.clients is None
        scale = np.std([1, 3, 5, 7])
        wanted = [[(3 - 4) / scale, 0, 1, 0, 0, 1], [(11 - 4) / scale, 0, 0, 0, 1, 0]]
        np.testing.assert_allclose(samples.x.astype(float), np.array(wanted, float), rtol=1e-6)

    def test_categories_are_taken_as_they_are_written(self, trained: Schema, tmp_path: Path) -> None:
        samples = read(trained, table(tmp_path, "a,4,01,true,no", "a,4,1,true,no"))
        assert samples.x[:, 1:4].tolist() == [[1, 0, 0], [0, 0, 0]]

    def test_a_class_nobody_trained_on_comes_after_the_last(self, trained: Schema, tmp_path: Path) -> None:
        samples = read(trained, table(tmp_path, "a,4,u,true,perhaps", "a,4,u,true,yes"))
        assert samples.y is not None
        assert samples.y.tolist() == [2, 1]

    def test_parquet_and_a_folder_of_files_are_read_too(self, trained: Schema, tmp_path: Path) -> None:
        from pyarrow import csv, parquet

        parquet.write_table(csv.read_csv(tmp_path / "train.csv"), tmp_path / "new.parquet")
        whole = read(trained, tmp_path / "train.csv")
        np.testing.assert_array_equal(read(trained, tmp_path / "new.parquet").x, whole.x)
        folder = tmp_path / "folder"
        folder.mkdir()
        for name, rows in (("a", ROWS[:2]), ("b", ROWS[2:])):
            (folder / f"{name}.csv").write_text("\n".join([HEAD, *rows]).replace("site,", "id,"))
        apart = read(trained, folder)
        np.testing.assert_array_equal(apart.x, whole.x)
        assert list(apart.clients or []) == ["a", "a", "b", "b"]
        assert apart.rows[2] == f"{folder / 'b.csv'}, row 1"

    @pytest.mark.parametrize(
        ("head", "row", "reason"),
        [
            ("age,ward", "1,u", "has no column 'flag', which the model needs"),
            (HEAD, "a,old,u,true,no", "column 'age' holds texts, such as 'old' in .*new.csv, row 1"),
            (HEAD, "a,,u,true,no", "values are missing, 1 in 'age' .*new.csv, row 1.: fill them first"),
            (HEAD, "a,1,u,true,", "values are missing, 1 in 'y'"),
        ],
    )
    def test_that_does_not_fit_is_refused(
        self, trained: Schema, tmp_path: Path, head: str, row: str, reason: str
    ) -> None:
        with pytest.raises(UserError, match=reason):
            trained.read(table(tmp_path, row, head=head))

    def test_gaps_are_filled_where_they_were_in_training(self, tmp_path: Path) -> None:
        path = table(tmp_path, "a,1,u,true,no", "a,3,v,false,yes", "b,5,u,true,yes")
        trained = schema_of(pflego.load(path, column="site", test_share=0, gaps="mean"))
        samples = read(trained, table(tmp_path, "a,,,true,no"))
        assert samples.x.tolist() == [[0, 0, 0, 0, 1]]

    def test_labels_of_a_regression_are_on_the_scale_of_training(self, tmp_path: Path) -> None:
        path = table(tmp_path, "a,1,10.5", "b,2,20.5", head="site,x,y")
        trained = schema_of(pflego.load(path, column="site", test_share=0))
        samples = read(trained, table(tmp_path, "a,1,25.5", head="site,x,y"))
        assert samples.y is not None
        assert samples.y.tolist() == [2.0]
        assert trained.in_units(samples.y).tolist() == [25.5]


class TestArrays:
    @pytest.fixture
    def digits(self) -> Federation:
        return pflego.load("digits", clients=5)

    def test_are_read_from_npz(self, digits: Federation, tmp_path: Path) -> None:
        client = digits[0]
        x, y = client.x_test.numpy(), client.y_test.numpy()
        np.savez(tmp_path / "new.npz", x=x.astype(np.float64), y=y)
        np.savez(tmp_path / "test.npz", x_train=x[:0], x_test=x, y_test=y)
        np.savez(tmp_path / "bare.npz", x=x)
        for name, known in [("new", True), ("test", True), ("bare", False)]:
            samples = read(schema_of(digits), tmp_path / f"{name}.npz")
            assert samples.x.dtype == np.float32
            np.testing.assert_array_equal(samples.x, x)
            assert (samples.y is not None) == known
            assert samples.y is None or samples.y.tolist() == y.tolist()

    @pytest.mark.parametrize("head", ["", ";".join(f"pixel {k}" for k in range(64)) + "\n"])
    def test_are_read_from_plain_numbers(self, digits: Federation, tmp_path: Path, head: str) -> None:
        x = digits[0].x_test.numpy()
        rows = "\n".join(";".join(map(str, row)) for row in x.tolist())
        (tmp_path / "new.csv").write_text(head + rows)
        samples = read(schema_of(digits), tmp_path / "new.csv")
        np.testing.assert_array_equal(samples.x, x)
        assert (samples.y, samples.clients) == (None, None)

    def test_of_another_shape_are_refused(self, digits: Federation, tmp_path: Path) -> None:
        (tmp_path / "new.csv").write_text("1,2,3\n")
        with pytest.raises(UserError, match="has 3 numbers a row, but a sample has 64"):
            schema_of(digits).read(tmp_path / "new.csv")
        np.savez(tmp_path / "new.npz", x=np.zeros((2, 8, 8)))
        with pytest.raises(
            UserError, match=r"samples of shape \(8, 8\), but the model was trained on \(64,\)"
        ):
            schema_of(digits).read(tmp_path / "new.npz")
        np.savez(tmp_path / "new.npz", z=np.zeros(3))
        with pytest.raises(UserError, match=r"has z; it needs x"):
            schema_of(digits).read(tmp_path / "new.npz")
        np.savez(tmp_path / "new.npz", x=np.zeros((2, 64)), y=np.zeros(3))
        with pytest.raises(UserError, match="2 inputs, but 3 labels"):
            schema_of(digits).read(tmp_path / "new.npz")

    def test_have_text_labels_by_name_and_numbers_by_number(self, tmp_path: Path) -> None:
        schema = Schema("arrays", (1,), "float32", "classification", class_names=("cat", "dog"))
        for y, wanted in [(["dog", "eel", "cat"], [1, 2, 0]), ([1, 0, 1], [1, 0, 1])]:
            np.savez(tmp_path / "new.npz", x=np.zeros((3, 1)), y=np.array(y))
            samples = read(schema, tmp_path / "new.npz")
            assert samples.y is not None
            assert samples.y.tolist() == wanted

    def test_of_bytes_must_be_bytes(self, tmp_path: Path) -> None:
        schema = Schema("arrays", (2,), "uint8", "regression")
        np.savez(tmp_path / "new.npz", x=np.array([[0, 255], [3, 4]]))
        assert read(schema, tmp_path / "new.npz").x.dtype == np.uint8
        np.savez(tmp_path / "new.npz", x=np.array([[0, 0.5]]))
        with pytest.raises(UserError, match="has float64 inputs, but the model was trained on bytes"):
            schema.read(tmp_path / "new.npz")

    def test_a_folder_names_the_clients(self, tmp_path: Path) -> None:
        for name in "ab":
            np.savez(tmp_path / f"{name}.npz", x=np.zeros((2, 1)), y=np.array([0, 1]))
        samples = read(Schema("arrays", (1,), "float32", "classification", class_names=("0", "1")), tmp_path)
        assert list(samples.clients or []) == ["a", "a", "b", "b"]
        assert samples.y is not None
        assert samples.y.tolist() == [0, 1, 0, 1]


class TestPictures:
    SCHEMA = Schema("images", (2, 2), "uint8", "classification", class_names=("cat", "dog"))

    def paint(self, path: Path, value: int = 9) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 2), value, np.uint8)).save(path)

    @pytest.mark.parametrize(
        ("files", "y", "clients"),
        [
            (["b.png", "a.jpg"], None, None),
            (["dog/a.png", "cat/b.png"], [0, 1], None),
            (["berlin/a.png", "wien/b.png"], None, ["berlin", "wien"]),
            (["wien/dog/a.png", "berlin/eel/b.png"], [2, 1], ["berlin", "wien"]),
        ],
        ids=["no folders", "classes", "clients", "clients and classes"],
    )
    def test_folders_say_what_they_can(self, tmp_path: Path, files: list[str], y: Any, clients: Any) -> None:
        for file in files:
            self.paint(tmp_path / file)
        samples = read(self.SCHEMA, tmp_path)
        assert (None if samples.y is None else samples.y.tolist()) == y
        assert samples.clients == clients
        assert list(samples.rows) == sorted(files)
        assert samples.x.dtype == np.uint8

    def test_one_picture_is_a_sample_and_is_made_to_fit(self, tmp_path: Path) -> None:
        Image.new("RGB", (7, 5), (50, 50, 50)).save(tmp_path / "new.png")
        samples = read(self.SCHEMA, tmp_path / "new.png")
        assert samples.x.tolist() == [[[50, 50], [50, 50]]]
        assert list(samples.rows) == ["new.png"]

    def test_train_and_test_at_once_are_refused(self, tmp_path: Path) -> None:
        self.paint(tmp_path / "train" / "a.png")
        self.paint(tmp_path / "test" / "a.png")
        with pytest.raises(UserError, match="holds data for training and for testing"):
            self.SCHEMA.read(tmp_path)

    def test_bytes_of_a_shape_of_pictures_can_be_pictures(self, tmp_path: Path) -> None:
        self.paint(tmp_path / "1.png", 7)
        schema = Schema("arrays", (2, 2), "uint8", "classification", class_names=("0", "1"))
        assert read(schema, tmp_path / "1.png").x.tolist() == [[[7, 7], [7, 7]]]

    def test_other_data_than_in_training_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("x\n1\n")
        with pytest.raises(UserError, match=r"a.csv: the model was trained on pictures"):
            self.SCHEMA.read(tmp_path / "a.csv")
        with pytest.raises(UserError, match="there is no file or folder"):
            self.SCHEMA.read(tmp_path / "none")
        self.paint(tmp_path / "1.png")
        with pytest.raises(UserError, match=r"trained on arrays of shape \(3,\)"):
            Schema("arrays", (3,), "float32", "regression").read(tmp_path / "1.png")
