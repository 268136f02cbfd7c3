from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego import UserError
from pflego.data.schema import Feature, Schema, schema_of
from pflego.federation.remote import RemoteFederation

TABLE = Schema(
    "table",
    (4,),
    "float32",
    "classification",
    features=(
        Feature("age", "number", mean=(1 / 3,), scale=(1e-7,)),
        Feature("ward “A”", "category", categories=("a", "ü", "\\")),
    ),
    label="y",
    client="site",
    class_names=("no", "yes"),
    fill=True,
)


@pytest.mark.parametrize(
    "schema", [TABLE, Schema("images", (28, 28, 3), "uint8", "classification", class_names=("a",))]
)
def test_what_is_written_down_is_read_again_to_the_last_bit(schema: Schema, tmp_path: Path) -> None:
    assert Schema.from_json(schema.to_json()) == schema
    (tmp_path / "schema.json").write_text(schema.to_json(), encoding="utf-8")
    assert Schema.open(tmp_path / "schema.json") == schema


def test_a_schema_has_a_line_a_column() -> None:
    assert (
        '\n  {"name": "age", "kind": "number", "mean": [0.3333333333333333], "scale": [1e-07]},\n'
        in TABLE.to_json()
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "[]",
        "{}",
        TABLE.to_json().replace("schema 1", "schema 9"),
        TABLE.to_json().replace('"table"', '"chair"'),
        '{"format": "pflego schema 1"}',
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no schema of pflego's"):
        Schema.from_json(text)


def test_classes_and_columns_are_known_by_name() -> None:
    assert [TABLE.class_name(id) for id in (0, 1, 2)] == ["no", "yes", "2"]
    assert [feature.width for feature in TABLE.features] == [1, 3]
    assert TABLE.inputs == 4


def test_outputs_of_a_regression_are_given_in_the_unit_of_the_label() -> None:
    schema = Schema("table", (1,), "float32", "regression", label_mean=100.0, label_scale=20.0)
    assert schema.in_units(np.array([0, 1.5, -1], np.float32)).tolist() == [100, 130, 80]


def test_data_that_have_a_name_are_taken_as_they_are() -> None:
    digits = schema_of(pflego.load("digits"))
    assert (digits.kind, digits.shape, digits.dtype) == ("arrays", (64,), "float32")
    assert digits.class_names == tuple("0123456789")
    diabetes = schema_of(pflego.load("diabetes"))
    assert (diabetes.task, diabetes.class_names) == ("regression", ())


def test_classes_of_a_known_data_set_have_their_names(tmp_path: Path) -> None:
    x, y = np.zeros((20, 28, 28), np.uint8), np.arange(20) % 10
    np.savez(tmp_path / "fashion-mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    schema = schema_of(pflego.load("fashion-mnist", data_dir=tmp_path, clients=5))
    assert schema.class_names[7:] == ("sneaker", "bag", "boot")
    assert schema.dtype == "uint8"


@pytest.mark.parametrize(("highest", "names"), [(7, 8), (10**9, 0)])
def test_classes_without_names_are_called_by_their_ids(highest: int, names: int) -> None:
    federation = pflego.Federation([pflego.Client("a", np.zeros((2, 1)), np.array([3, highest]))])
    schema = schema_of(federation)
    assert len(schema.class_names) == names
    assert schema.class_name(highest) == str(highest)


def test_a_federation_with_a_schema_keeps_it() -> None:
    client = pflego.Client("a", np.zeros((2, 4)), np.array([0, 1]))
    assert schema_of(pflego.Federation([client], schema=TABLE)) is TABLE
    lazy = pflego.Federation.lazy(["a"], lambda id: client, sizes=[2], classes=[0, 1], schema=TABLE)
    assert lazy.schema is TABLE
    far = RemoteFederation(["a"], sizes=[2], classes=[0, 1], outputs=2, schema=TABLE)
    assert far.schema is TABLE
