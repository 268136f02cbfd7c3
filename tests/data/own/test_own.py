"""Tables of one's own: one with a column of clients, or a file a client."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego import Federation, UserError
from pflego.data.problems import DataProblems, DataWarning
from pflego.data.schema import Schema
from pflego.errors import DataError

pytest.importorskip("pyarrow")

Load = Callable[..., Federation]

PATIENTS = """\
hospital,age,ward,smoker,diagnosis
north,30,a,yes,ill
north,40,b,no,well
north,50,a,no,ill
north,60,b,yes,well
north,70,a,no,ill
south,20,c,no,well
south,30,c,yes,well
south,90,a,no,ill
"""


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    path.write_text(PATIENTS)
    return path


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def same(one: Federation, other: Federation) -> bool:
    parts = ("x_train", "y_train", "x_test", "y_test")
    return list(one.ids) == list(other.ids) and all(
        torch.equal(getattr(a, part), getattr(b, part))
        for a, b in zip(one, other, strict=True)
        for part in parts
    )


def test_a_column_names_the_clients_and_another_the_labels(patients: Path) -> None:
    federation = pflego.load(patients, column="hospital", label="diagnosis", test_share=0)
    assert list(federation.ids) == ["north", "south"]
    assert federation.sizes.tolist() == [5, 3]
    assert federation.schema is not None
    assert federation.schema.class_names == ("ill", "well")
    assert federation.client("north").y_train.tolist() == [0, 1, 0, 1, 0]
    ages = np.array([30, 40, 50, 60, 70, 20, 30, 90])
    scaled = (ages - ages.mean()) / ages.std()
    x = torch.cat([client.x_train for client in federation]).numpy()
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[:, 0], scaled, rtol=1e-6)
    wards = np.array([0, 1, 0, 1, 0, 2, 2, 0])
    np.testing.assert_array_equal(x[:, 1:4], np.eye(3)[wards])
    np.testing.assert_array_equal(x[:, 4:], np.eye(2)[[1, 0, 0, 1, 0, 0, 1, 0]])


def test_numbers_are_scaled_by_the_training_rows_of_all_clients_alone(patients: Path) -> None:
    federation = pflego.load(patients, column="hospital", label="diagnosis", test_share=0.4, seed=3)
    assert federation.schema is not None
    age = federation.schema.features[0]
    raw = pflego.load(patients, column="hospital", label="diagnosis", test_share=0.4, seed=3, scale=False)
    ages = torch.cat([client.x_train[:, 0] for client in raw]).double()
    assert len(ages) < 8
    assert age.mean == pytest.approx([float(ages.mean())])
    assert age.scale == pytest.approx([float(ages.std(correction=0))])


@pytest.mark.parametrize(
    "options",
    [
        {"column": "hospital", "label": "diagnosis"},
        {"column": "hospital", "label": "age", "drop": ["ward"], "task": "regression", "test_share": 0.4},
        {"label": "diagnosis", "clients": 2, "partition": "iid", "scale": False, "seed": 5},
        {"label": "diagnosis", "clients": 2, "classes_per_client": 1},
    ],
)
def test_what_a_federation_was_made_with_makes_it_again(patients: Path, options: dict[str, Any]) -> None:
    federation = pflego.load(patients, **options)
    made = dict(federation.source)
    again = pflego.load(str(made.pop("data")), seed=int(str(made.pop("data_seed"))), **made)  # type: ignore[arg-type]
    assert same(federation, again)
    assert again.source == federation.source


def test_a_file_a_client_is_the_same_as_a_column(patients: Path, tmp_path: Path) -> None:
    lines = [line.split(",", 1) for line in PATIENTS.splitlines()]
    files = {
        name: "\n".join(rest for owner, rest in lines if owner in ("hospital", name))
        for name in ("south", "north")
    }
    apart = pflego.load(write(tmp_path / "wards", **files), label="diagnosis", seed=1)
    assert same(apart, pflego.load(patients, column="hospital", label="diagnosis", seed=1))


def test_parquet_is_read_like_csv(patients: Path, tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(patients), tmp_path / "p.parquet")
    options: dict[str, Any] = {"column": "hospital", "label": "diagnosis"}
    assert same(pflego.load(tmp_path / "p.parquet", **options), pflego.load(patients, **options))


def test_whole_numbers_name_clients_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("site,x,y\n10,1,0\n9,2,1\n10,3,0\n")
    assert list(pflego.load(path, column="site", test_share=0).ids) == [9, 10]
    path.write_text("site,x,y\n0.5,1,0\n9,2,1\n")
    with pytest.raises(UserError, match="column 'site' cannot name clients"):
        pflego.load(path, column="site")


@pytest.mark.parametrize("name", ["label", "target", "y", "class", "Label"])
def test_the_labels_are_found_by_their_usual_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"site,x,{name}\na,1,0\na,2,1\nb,3,0\n")
    assert pflego.load(path, column="site").source["label"] == name


@pytest.mark.parametrize(
    ("head", "options", "reason"),
    [
        ("a,b,c", {}, "no column is called label, target, y, class: .*label=.*the columns are 'a', 'b', 'c'"),
        ("y,label,c", {}, "'y', 'label' could all be the labels"),
        ("1,2,3", {}, "the first line of a CSV file must name its columns"),
        ("a,b,y", {"label": "z"}, "has no column 'z'; it has 'a', 'b', 'y'"),
        ("a,b,y", {"column": "z"}, "has no column 'z'; it has 'a', 'b', 'y'"),
        ("a,b,y", {"column": "y"}, "'y' cannot be the column of labels and of clients at once"),
        ("a,b,y", {"drop": ["z"]}, "no column 'z' to drop; it has 'a', 'b', 'y'"),
        ("a,b,y", {"drop": ["b"], "column": "a"}, "has no column left to learn from"),
        ("a,b,y", {}, "nothing says whose a sample is: .*one of 'a', 'b', or divide it"),
        ("a,b,y", {"task": "ranking"}, "unknown task 'ranking'"),
        ("a,b,y", {"gaps": "zero"}, "unknown gaps 'zero'"),
        ("a,b,y", {"test_share": 1}, "test_share must be a number at least 0 and below 1"),
        ("a,b,y", {"scale": "yes"}, "scale must be true or false"),
        ("a,b,y", {"drop": "a"}, "drop must be a list of texts"),
        ("a,b,y", {"column": "a", "size": 3}, "size is for pictures: leave it out"),
        ("a,b,y", {"column": "a", "alpha": 1.0}, "has clients of its own: leave partition"),
        ("a,b,y", {"column": "a", "clients": 7}, "has 2 clients of its own: leave clients out, or say 2"),
        ("a,b,y", {"column": "a", "rotations": 2}, "rotations is for data sets that have a name"),
        ("a,b,y", {"column": "a", "ids": [1]}, "ids is nothing for .*a.csv"),
    ],
)
def test_what_was_asked_for_wrongly_is_refused_with_the_columns_there_are(
    tmp_path: Path, head: str, options: dict[str, Any], reason: str
) -> None:
    (tmp_path / "a.csv").write_text(f"{head}\n1,2,0\n2,3,1\n")
    with pytest.raises(UserError, match=reason):
        pflego.load(tmp_path / "a.csv", **options)


@pytest.mark.parametrize("path", ["no.csv", "some/folder", "no.parquet"])
def test_a_path_of_nothing_is_refused(path: str) -> None:
    with pytest.raises(UserError, match=f"{path} is no folder and no CSV"):
        pflego.load(path)


def test_a_data_set_with_a_name_takes_no_options_of_tables() -> None:
    with pytest.raises(
        UserError, match="label is for data of your own, in tables or folders, not for digits"
    ):
        pflego.load("digits", label="y")


class TestGaps:
    """Values that are missing."""

    TEXT = "site,x,ward,y\na,1,u,0\na,,v,1\na,3, ,0\na,5,u,1\nb,7,v,NA\nb,9,u,0\n"

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        (tmp_path / "a.csv").write_text(self.TEXT)
        return tmp_path / "a.csv"

    def test_are_named_by_file_row_and_column(self, path: Path) -> None:
        with pytest.raises(DataProblems, match="values are missing") as refusal:
            pflego.load(path, column="site")
        for words in ("1 in 'x'", "a.csv, row 2", "1 in 'ward'", "row 3", "1 in 'y'", "row 5", "gaps='mean'"):
            assert words in str(refusal.value)

    def test_can_be_left_out_with_their_rows(self, path: Path) -> None:
        with pytest.warns(DataWarning, match="3 of 6 rows have missing values and are left out"):
            federation = pflego.load(path, column="site", gaps="drop", test_share=0, scale=False)
        assert [client.x_train.tolist() for client in federation] == [[[1, 1], [5, 1]], [[9, 1]]]

    def test_can_be_filled_but_not_in_labels(self, path: Path) -> None:
        with (
            pytest.warns(DataWarning, match="filled with the mean, or with no category"),
            pytest.raises(DataProblems, match=r"1 in 'y' .*row 5") as refusal,
        ):
            pflego.load(path, column="site", gaps="mean")
        assert "'x'" not in str(refusal.value)

    def test_are_filled_with_the_mean_and_with_no_category(self, path: Path) -> None:
        path.write_text(self.TEXT.replace("NA", "1"))
        with pytest.warns(DataWarning):
            federation = pflego.load(path, column="site", gaps="mean", test_share=0)
        assert federation.schema is not None
        assert federation.schema.fill
        values = np.array([1, 3, 5, 7, 9])
        x = torch.cat([client.x_train for client in federation]).numpy()
        wanted = (np.array([1, 5, 3, 5, 7, 9]) - 5) / math.sqrt(values.var())
        np.testing.assert_allclose(x[:, 0], wanted, atol=1e-6)
        np.testing.assert_array_equal(x[:, 1:], [[1, 0], [0, 1], [0, 0], [1, 0], [0, 1], [1, 0]])

    def test_in_every_row_leave_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("site,x,y\na,,1\nb,,0\n")
        with (
            pytest.warns(DataWarning, match="2 of 2 rows"),
            pytest.raises(DataProblems, match="every row has a missing value"),
        ):
            pflego.load(tmp_path / "a.csv", column="site", gaps="drop")


def many(column: str, value: Callable[[int], object], rows: int = 40) -> str:
    lines = [f"{'ab'[k % 2]},{k * k % 7},{value(k)},{k % 3}" for k in range(rows)]
    return "\n".join([f"site,x,{column},y", *lines])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            lambda k: f"patient {k}",
            "column 'odd' has another text in nearly every row.*drop=.*'odd'.*--drop odd",
        ),
        (lambda k: f"2020-01-{1 + k % 28:02}", "column 'odd' holds dates or times"),
        (lambda k: "inf" if k == 6 else 0.5, "column 'odd' is infinite in .*a.csv, row 7"),
        (
            lambda k: "?" if k == 3 else k + 0.25,
            "column 'odd' holds numbers, but as texts, since there is '\\?' in .*row 4",
        ),
    ],
    ids=["names", "dates", "infinite", "almost numbers"],
)
def test_columns_that_cannot_be_learned_from_are_refused(
    tmp_path: Path, value: Callable[[int], object], reason: str
) -> None:
    (tmp_path / "a.csv").write_text(many("odd", value))
    with pytest.raises(DataProblems, match=reason):
        pflego.load(tmp_path / "a.csv", column="site")
    assert pflego.load(tmp_path / "a.csv", column="site", drop=["odd"]).samples == 32


def test_more_texts_than_inputs_are_worth_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(many("street", lambda k: f"street {k % 1100}", rows=3300))
    with pytest.raises(DataProblems, match="column 'street' has 1,100 different texts"):
        pflego.load(tmp_path / "a.csv", column="site")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda k: k + 1000, "column 'odd' numbers the rows"),
        (lambda k: k // 2, None),
        (
            lambda k: "?" if k == 3 else k % 30,
            "holds numbers, but as texts, since there is '\\?' in .*, row 4: each",
        ),
    ],
    ids=["row numbers", "others", "numbers as texts"],
)
def test_columns_that_look_wrong_earn_a_warning(
    tmp_path: Path, value: Callable[[int], object], words: str | None
) -> None:
    rows = 400 if words and "holds" in words else 40
    (tmp_path / "a.csv").write_text(many("odd", value, rows))
    if words is None:
        pflego.load(tmp_path / "a.csv", column="site")
    else:
        with pytest.warns(DataWarning, match=words):
            pflego.load(tmp_path / "a.csv", column="site")


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        ([[1.0, 2.0]] * 5 + [[1.0]], {}, r"column 'odd' holds lists of different lengths: leave it out"),
        ([[1.0, 2.0]] * 5 + [None], {}, r"values are missing, 1 in 'odd' \(first: the table, row 6\)"),
        (
            [str(k) for k in range(30)] * 4,
            {},
            "column 'odd' holds numbers, but as texts: each is taken as a category",
        ),
        ([str(k) for k in range(30)], {}, "column 'odd' holds numbers, but as texts: make it numbers alone"),
    ],
    ids=["ragged", "a list missing", "numbers as categories", "numbers as texts"],
)
def test_tables_of_other_libraries_are_looked_through_too(
    values: list[object], options: dict[str, Any], reason: str
) -> None:
    import pyarrow as pa

    rows = len(values)
    table = pa.table(
        {"odd": values, "y": [k % 2 for k in range(rows)], "site": ["ab"[k % 2] for k in range(rows)]}
    )
    with pytest.raises((DataProblems, DataWarning), match=reason):
        pflego.load(table, column="site", **options)


def test_tables_of_other_libraries_are_read_like_files(patients: Path) -> None:
    from pyarrow import csv

    options: dict[str, Any] = {"column": "hospital", "label": "diagnosis", "drop": ["ward"]}
    table = csv.read_csv(patients)
    federation = pflego.load(table, **options)
    assert same(federation, pflego.load(patients, **options))
    assert "data" not in federation.source
    pandas = pytest.importorskip("pandas")
    assert same(federation, pflego.load(pandas.read_csv(patients), **options))
    with pytest.raises(UserError, match="the table has no column 'nose' to drop"):
        pflego.load(table, drop=["nose"])


def test_a_missing_list_is_filled_with_the_means() -> None:
    import pyarrow as pa

    table = pa.table({"scan": [[1.0, 2.0], None, [3.0, 6.0]], "y": [0, 1, 0], "site": ["a", "a", "b"]})
    with pytest.warns(DataWarning):
        federation = pflego.load(table, column="site", gaps="mean", test_share=0, scale=False)
    assert federation[0].x_train.tolist() == [[1, 2], [2, 4]]


def test_all_that_is_wrong_is_in_one_error(tmp_path: Path) -> None:
    lines = [f"{'ab'[k % 2]},{'' if k == 2 else k % 5},name {k},2020-01-01,0" for k in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["site,x,who,day,y", *lines]))
    with pytest.raises(DataProblems, match=r"\(and 2 more: pflego data check\)") as refusal:
        pflego.load(tmp_path / "a.csv", column="site")
    assert ["who" in refusal.value.problems[0], "day" in refusal.value.problems[1]] == [True, True]
    assert "a.csv, row 3" in refusal.value.problems[2]


def test_latin_letters_in_another_encoding_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("site,x,town,y\na,1,Köln,0\nb,2,Bonn,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="not written in UTF-8, column 'town'"):
        pflego.load(tmp_path / "a.csv", column="site")


class TestSplit:
    """What the data say themselves of training and testing."""

    TEXT = "site,x,split,y\na,1,train,0\na,2,test,1\na,3,Train,1\nb,4,train,0\n"

    def test_a_column_decides(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(self.TEXT)
        federation = pflego.load(tmp_path / "a.csv", column="site", scale=False)
        assert [client.x_train.flatten().tolist() for client in federation] == [[1, 3], [4]]
        assert [client.x_test.flatten().tolist() for client in federation] == [[2], []]
        assert "test_share" not in federation.source

    def test_a_share_besides_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(self.TEXT)
        with pytest.raises(UserError, match="test_share is for data that do not say what is for testing"):
            pflego.load(tmp_path / "a.csv", column="site", test_share=0.5)

    def test_a_third_part_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(self.TEXT.replace("Train", "val"))
        with pytest.raises(UserError, match="column 'split' has val beside train and test"):
            pflego.load(tmp_path / "a.csv", column="site")

    def test_a_client_needs_something_to_train_on(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(self.TEXT.replace("b,4,train", "b,4,test"))
        with pytest.raises(UserError, match="client 'b' has nothing to train on"):
            pflego.load(tmp_path / "a.csv", column="site")

    def test_another_column_of_this_name_is_an_input(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("site,split,y\na,left,0\na,right,1\nb,left,0\n")
        federation = pflego.load(tmp_path / "a.csv", column="site", test_share=0)
        assert federation.schema is not None
        assert federation.schema.features[0].categories == ("left", "right")

    def test_folders_decide_too(self, tmp_path: Path) -> None:
        write(tmp_path / "train", a="x,y\n1,0\n3,1\n", b="x,y\n4,0\n")
        write(tmp_path / "test", a="x,y\n2,1\n")
        federation = pflego.load(tmp_path, scale=False)
        assert list(federation.ids) == ["a", "b"]
        assert [client.x_train.flatten().tolist() for client in federation] == [[1, 3], [4]]
        assert [client.x_test.flatten().tolist() for client in federation] == [[2], []]

    def test_one_file_for_each_may_have_a_column_of_clients(self, tmp_path: Path) -> None:
        write(tmp_path, train="site,x,y\na,1,0\nb,2,1\n", test="site,x,y\nb,3,1\n")
        federation = pflego.load(tmp_path, column="site", scale=False)
        assert [len(client.x_test) for client in federation] == [0, 1]


def test_a_client_without_rows_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a="x,y\n1,0\n2,1\n", b="x,y\n")
    with pytest.raises(UserError, match="client 'b' has nothing to train on"):
        pflego.load(tmp_path)


def test_other_files_in_a_folder_are_mentioned(tmp_path: Path) -> None:
    write(tmp_path, a="x,y\n1,0\n2,1\n", b="x,y\n1,0\n")
    (tmp_path / "notes.txt").touch()
    with pytest.warns(DataWarning, match="1 other file in .* left unread"):
        pflego.load(tmp_path)


def test_a_task_that_was_named_is_not_doubted(patients: Path) -> None:
    pflego.load(patients, column="hospital", label="age", task="regression", drop=["diagnosis"])


def test_a_regression_learns_scaled_labels_and_its_error_is_in_their_unit(tmp_path: Path) -> None:
    rows = [(k % 3, k * k % 7, 1000 + 10.5 * k) for k in range(30)]
    (tmp_path / "a.csv").write_text("site,x,y\n" + "\n".join(f"{a},{b},{c}" for a, b, c in rows))
    federation = pflego.load(tmp_path / "a.csv", column="site", test_share=0.3)
    plain = pflego.load(tmp_path / "a.csv", column="site", test_share=0.3, scale=False)
    train, test = (
        np.concatenate([getattr(c, part).numpy() for c in plain]) for part in ("y_train", "y_test")
    )
    schema = federation.schema
    assert schema is not None
    assert (schema.label_mean, schema.label_scale) == pytest.approx((train.mean(), train.std()))
    for client, raw in zip(federation, plain, strict=True):
        back = schema.in_units(client.y_test.numpy()).astype(float)
        np.testing.assert_allclose(back, raw.y_test.numpy(), rtol=1e-6)
    run = pflego.train(
        federation,
        pflego.models.build("mlp", (1,)),
        pflego.PFLEGO(steps=1, client_lr=1e-9, server_lr=1e-9),
        rounds=1,
        progress=False,
    )
    wanted = np.sqrt(np.mean((test - train.mean()) ** 2))  # of heads that know nothing and say zero
    assert run.history[-1]["everyone_rmse"] == pytest.approx(wanted, rel=1e-4)


class TestSchema:
    """A site that has only data of its own."""

    @pytest.fixture
    def file(self, patients: Path, tmp_path: Path) -> Path:
        federation = pflego.load(patients, column="hospital", label="diagnosis", test_share=0)
        assert federation.schema is not None
        (tmp_path / "schema.json").write_text(federation.schema.to_json())
        return tmp_path / "schema.json"

    def site(self, tmp_path: Path, *rows: str, head: str = "age,ward,smoker,diagnosis") -> Path:
        (tmp_path / "south.csv").write_text("\n".join([head, *rows]))
        return tmp_path / "south.csv"

    ROWS = ("20,c,no,well", "30,c,yes,well", "90,a,no,ill")

    def test_encodes_as_all_do(self, patients: Path, file: Path, tmp_path: Path) -> None:
        whole = pflego.load(patients, column="hospital", label="diagnosis", test_share=0)
        own = pflego.load(self.site(tmp_path, *self.ROWS), schema=file, test_share=0)
        assert list(own.ids) == ["south"]
        assert torch.equal(own[0].x_train, whole.client("south").x_train)
        assert torch.equal(own[0].y_train, whole.client("south").y_train)
        assert own.schema == whole.schema
        made = dict(own.source)
        assert made["schema"] == str(file)
        again = pflego.load(str(made.pop("data")), seed=int(str(made.pop("data_seed"))), **made)  # type: ignore[arg-type]
        assert same(own, again)

    def test_holds_out_the_same_samples_as_in_a_simulation(
        self, patients: Path, file: Path, tmp_path: Path
    ) -> None:
        whole = pflego.load(patients, schema=file, seed=4, test_share=0.4)
        own = pflego.load(self.site(tmp_path, *self.ROWS), schema=file, seed=4, test_share=0.4)
        assert torch.equal(own[0].x_test, whole.client("south").x_test)

    def test_a_category_that_nobody_had_gets_zeros(self, file: Path, tmp_path: Path) -> None:
        own = pflego.load(self.site(tmp_path, "20,z,no,well", "30,7,no,ill"), schema=file, test_share=0)
        assert own[0].x_train[:, 1:4].tolist() == [[0, 0, 0], [0, 0, 0]]

    def test_columns_besides_are_not_taken(self, file: Path, tmp_path: Path) -> None:
        path = self.site(tmp_path, "1,20,c,no,well", head="id,age,ward,smoker,diagnosis")
        with pytest.warns(DataWarning, match="the schema has no column 'id'"):
            assert pflego.load(path, schema=file).samples == 1

    @pytest.mark.parametrize(
        ("head", "row", "options", "reason"),
        [
            ("age,ward,diagnosis", "1,a,ill", {}, "has no column 'smoker', which the schema asks for"),
            ("age,ward,smoker", "1,a,no", {}, "has no column 'diagnosis'"),
            (
                "age,ward,smoker,diagnosis",
                "1,a,no,dead",
                {},
                "row 1: the label 'dead' is no class of the schema",
            ),
            (
                "age,ward,smoker,diagnosis",
                "old,a,no,ill",
                {},
                "column 'age' holds texts, such as 'old' in .*row 1",
            ),
            ("age,ward,smoker,diagnosis", ",a,no,ill", {}, "values are missing, 1 in 'age'"),
            (
                "age,ward,smoker,diagnosis",
                "1,a,no,ill",
                {"label": "age"},
                "label is said by the schema already",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, file: Path, tmp_path: Path, head: str, row: str, options: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(UserError, match=reason):
            pflego.load(self.site(tmp_path, row, head=head), schema=file, **options)

    def test_a_damaged_schema_is_refused(self, patients: Path, tmp_path: Path) -> None:
        (tmp_path / "schema.json").write_text("{}")
        with pytest.raises(UserError, match=r"cannot read .*schema.json: no schema of pflego's"):
            pflego.load(patients, schema=tmp_path / "schema.json")
        with pytest.raises(UserError, match=r"cannot read .*none.json: No such file"):
            pflego.load(patients, schema=tmp_path / "none.json")
        (tmp_path / "schema.json").write_text(Schema("images", (2, 2), "uint8", "classification").to_json())
        with pytest.raises(UserError, match=r"is a table, but the schema is one of images"):
            pflego.load(patients, schema=tmp_path / "schema.json")


def test_a_run_writes_its_schema_and_can_be_opened_again(patients: Path, tmp_path: Path) -> None:
    federation = pflego.load(patients, column="hospital", label="diagnosis")
    run = pflego.train(
        federation,
        pflego.models.build("mlp", (6,)),
        pflego.PFLEGO(steps=2),
        rounds=1,
        out=tmp_path / "run",
        progress=False,
    )
    assert federation.schema is not None
    assert (tmp_path / "run" / "checkpoint" / "schema.json").read_text() == federation.schema.to_json()
    again = pflego.open_run(tmp_path / "run")
    assert again.federation.schema == federation.schema
    assert torch.equal(again.states["north"]["head"], run.states["north"]["head"])


def _rows(path: Path, ages: list[str], labels: list[str]) -> Path:
    lines = [f"{'ab'[n % 2]},{age},{label}" for n, (age, label) in enumerate(zip(ages, labels, strict=True))]
    path.write_text("\n".join(["site,age,label", *lines]))
    return path


def test_one_stray_cell_in_a_column_of_numbers_is_warned_of_by_its_row(tmp_path: Path) -> None:
    ages = ["1", "2.5", "3", "4", "5x", "1"]
    with pytest.warns(
        DataWarning, match=r"'age' holds numbers, but as texts, since there is '5x' in .*row 5"
    ):
        pflego.load(_rows(tmp_path / "a.csv", ages, ["p", "q"] * 3), column="site")
    with pytest.warns(DataWarning, match=r"'label' holds numbers, .*'5x' in .*row 5.*not as a regression"):
        pflego.load(_rows(tmp_path / "b.csv", ["1", "2"] * 3, ages), column="site")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pflego.load(_rows(tmp_path / "c.csv", ["red", "blue", "1"] * 2, ["p", "q"] * 3), column="site")


def test_clients_that_differ_in_blanks_alone_are_not_merged(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site,age,label\nb,1,p\n b,2,q\nb,3,p\n b,4,q\n")
    with pytest.raises(DataError, match=r"' b'.*differ in blanks"):
        pflego.load(tmp_path / "t.csv", column="site")
    (tmp_path / "t.csv").write_text("site,age,label\n b,1,p\n b,2,q\n c,3,p\n c,4,q\n")
    assert list(pflego.load(tmp_path / "t.csv", column="site").ids) == ["b", "c"]


@pytest.mark.parametrize(
    ("encoding", "reason"), [("utf-16", "UTF-16"), ("utf-32", "UTF-32"), ("latin-1", "not written in UTF-8")]
)
def test_another_encoding_is_named(tmp_path: Path, encoding: str, reason: str) -> None:
    (tmp_path / "t.csv").write_bytes("site,größe,label\na,1,p\nb,2,q\n".encode(encoding))
    with pytest.raises(DataError, match=reason):
        pflego.load(tmp_path / "t.csv", column="site")
