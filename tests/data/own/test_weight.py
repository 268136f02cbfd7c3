"""A column of weights: how much each row of one's own data counts."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego import DataError, Federation
from pflego.data.left_out import left_out
from pflego.data.one_client import read_client
from pflego.data.problems import DataProblems
from pflego.data.schema import Schema
from pflego.settings.experiment import load_data
from pflego.settings.tables import read_settings

pytest.importorskip("pyarrow")

ROWS = [
    "north,30,ill,0.5,train",
    "north,40,well,2,train",
    "north,50,ill,0,train",
    "north,60,well,1,test",
    "south,20,well,3,train",
    "south,30,ill,1e1,train",
    "south,90,ill,7,test",
]
HEAD = "ward,age,label,w,split"


def table(folder: Path, rows: list[str] = ROWS, head: str = HEAD, name: str = "wards.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def weights(federation: Federation) -> list[list[float]]:
    return [client.weights.tolist() for client in federation if client.weights is not None]


def test_a_column_of_weights_is_no_input_and_follows_the_training_rows(tmp_path: Path) -> None:
    federation = pflego.load(table(tmp_path), column="ward", weight="w")
    assert weights(federation) == [[0.5, 2.0, 0.0], [3.0, 10.0]]
    assert federation.weighted
    assert federation.masses.tolist() == [2.5, 13.0]
    assert federation.schema is not None
    assert [feature.name for feature in federation.schema.features] == ["age"]
    assert federation.schema.weight == "w"
    assert federation.source["weight"] == "w"


def test_scales_are_those_of_all_training_rows_alike(tmp_path: Path) -> None:
    federation = pflego.load(table(tmp_path), column="ward", weight="w")
    assert federation.schema is not None
    [age] = federation.schema.features
    assert age.mean == ((30 + 40 + 50 + 20 + 30) / 5,)


def test_drawn_test_rows_take_their_weights_along(tmp_path: Path) -> None:
    rows = [f"{'ab'[k % 2]},{k * k},{k % 3},{k * k + 1}" for k in range(40)]
    path = table(tmp_path, rows, "ward,age,label,w")
    federation = pflego.load(path, column="ward", weight="w", scale=False)
    for client, own in zip(federation, weights(federation), strict=True):
        assert own == (client.x_train[:, 0] + 1).tolist()


def test_rows_that_are_divided_among_clients_take_their_weights_along(tmp_path: Path) -> None:
    rows = [f"{k * k},{k % 3},{k * k + 1}" for k in range(40)]
    path = table(tmp_path, rows, "age,label,w")
    federation = pflego.load(path, clients=4, partition="iid", weight="w", scale=False)
    for client, own in zip(federation, weights(federation), strict=True):
        assert own == (client.x_train[:, 0] + 1).tolist()


def test_those_who_are_left_out_take_their_weights_along(tmp_path: Path) -> None:
    federation = pflego.load(table(tmp_path), column="ward", weight="w", leave_out=["north"])
    assert weights(federation) == [[3.0, 10.0]]
    newcomer, _ = left_out(federation, "north")
    assert newcomer.weights is not None
    assert newcomer.weights.tolist() == [0.5, 2.0, 0.0]


def test_a_schema_says_which_column_it_is(tmp_path: Path) -> None:
    path = table(tmp_path)
    schema = pflego.load(path, column="ward", weight="w").schema
    assert schema is not None
    again = Schema.from_json(schema.to_json())
    assert again == schema
    assert weights(pflego.load(path, schema=schema)) == [[0.5, 2.0, 0.0], [3.0, 10.0]]
    with pytest.raises(DataError):
        pflego.load(path, schema=schema, weight="w")
    client, _ = read_client(path, "south", schema, seed=0)
    assert client.weights is not None


def test_a_site_without_the_schemas_weights_is_told_to_add_them(tmp_path: Path) -> None:
    schema = pflego.load(table(tmp_path), column="ward", weight="w").schema
    with pytest.raises(DataError, match="add it"):
        pflego.load(table(tmp_path, ["30,ill"] * 5, "age,label", "north.csv"), schema=schema)


def test_a_schema_without_weights_is_written_as_ever(tmp_path: Path) -> None:
    schema = pflego.load(table(tmp_path), column="ward", drop=["w"]).schema
    assert schema is not None
    assert "weight" not in schema.to_json()
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize("weight", ["age", "label", "ward", 3])
def test_a_schema_whose_weights_are_something_else_is_refused(tmp_path: Path, weight: object) -> None:
    schema = pflego.load(table(tmp_path), column="ward", weight="w").schema
    assert schema is not None
    with pytest.raises(DataError):
        Schema.from_json(replace(schema, weight=weight).to_json())  # type: ignore[arg-type]


def test_new_data_need_no_weights(tmp_path: Path) -> None:
    schema = pflego.load(table(tmp_path), column="ward", weight="w").schema
    assert schema is not None
    samples = schema.read(table(tmp_path, ["30,ill", "40,well"], "age,label", "new.csv"))
    assert samples.x.shape == (2, 1)


@pytest.mark.parametrize("value", ["-1", "inf", "-inf", "heavy", "true"])
def test_what_is_no_weight_is_refused_by_its_row(tmp_path: Path, value: str) -> None:
    path = table(tmp_path, [*ROWS[:4], f"south,25,well,{value},train", *ROWS[4:]])
    with pytest.raises(DataProblems, match="row 5"):
        pflego.load(path, column="ward", weight="w")


@pytest.mark.parametrize("value", ["", "NaN", "NA"])
def test_a_missing_weight_is_a_gap_that_is_never_filled(tmp_path: Path, value: str) -> None:
    path = table(tmp_path, [*ROWS, f"south,25,well,{value},train"])
    for gaps in (None, "mean", "indicator"):
        with pytest.raises(DataError, match="row 8"):
            pflego.load(path, column="ward", weight="w", gaps=gaps)
    with warnings.catch_warnings(action="ignore"):
        federation = pflego.load(path, column="ward", weight="w", gaps="drop")
    assert weights(federation) == [[0.5, 2.0, 0.0], [3.0, 10.0]]


def test_a_client_all_of_whose_training_rows_weigh_nothing_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, [*ROWS, "west,20,well,0,train", "west,21,ill,0,train", "west,22,ill,4,test"])
    with pytest.raises(DataError, match="west"):
        pflego.load(path, column="ward", weight="w")


@pytest.mark.parametrize(
    "options",
    [
        {"weight": "nothing"},
        {"weight": "label"},
        {"weight": "ward"},
        {"weight": "w", "drop": ["w"]},
        {"weight": "w", "category": ["w"]},
    ],
    ids=str,
)
def test_a_column_that_is_not_there_or_something_else_is_refused(
    tmp_path: Path, options: dict[str, object]
) -> None:
    with pytest.raises(DataError):
        pflego.load(table(tmp_path), column="ward", label="label", **options)  # type: ignore[arg-type]


def arrays(path: Path, **others: object) -> None:
    x = np.arange(12.0).reshape(6, 2)
    np.savez(path, **{"x": x, "y": np.arange(6) % 2, **others})  # type: ignore[arg-type]


def test_files_of_arrays_have_weights_by_their_name(tmp_path: Path) -> None:
    (tmp_path / "wards").mkdir()
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    arrays(tmp_path / "wards" / "a.npz", w=np.arange(6) + 1)
    parts = {"x_train": x[:4], "y_train": y[:4], "x_test": x[4:], "y_test": y[4:]}
    np.savez(tmp_path / "wards" / "b.npz", **parts, w_train=np.full(4, 0.5))  # type: ignore[arg-type]
    federation = pflego.load(tmp_path / "wards", weight="w")
    first, second = federation
    assert first.weights is not None
    assert first.weights.tolist() == (first.x_train[:, 0] / 2 + 1).tolist()
    assert second.weights is not None
    assert second.weights.tolist() == [0.5] * 4
    again = pflego.load(tmp_path / "wards", schema=federation.schema)
    assert weights(again) == weights(federation)
    client, _ = read_client(tmp_path / "wards" / "b.npz", "b", federation.schema, seed=0)  # type: ignore[arg-type]
    assert client.weights is not None


@pytest.mark.parametrize(
    "others", [{}, {"w": np.ones(5)}, {"w": np.ones((6, 1))}, {"w": -np.ones(6)}], ids=str
)
def test_files_whose_weights_are_missing_or_of_another_shape_are_refused(
    tmp_path: Path, others: dict[str, object]
) -> None:
    (tmp_path / "wards").mkdir()
    arrays(tmp_path / "wards" / "a.npz", **others)
    with pytest.raises(DataError):
        pflego.load(tmp_path / "wards", weight="w")


def test_one_file_of_arrays_that_is_divided(tmp_path: Path) -> None:
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    parts = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    weights_of_rows = {"w_train": np.arange(20) + 1, "w_test": np.ones(20)}
    np.savez(tmp_path / "all.npz", **parts, **weights_of_rows)  # type: ignore[arg-type]
    federation = pflego.load(tmp_path / "all.npz", clients=4, partition="iid", weight="w")
    for client, own in zip(federation, weights(federation), strict=True):
        assert own == (client.x_train[:, 0] / 2 + 1).tolist()
    assert federation.source["weight"] == "w"
    with pytest.raises(DataError):
        pflego.load(tmp_path / "all.npz", clients=4, weight="v")


def test_data_without_weights_refuse_them() -> None:
    with pytest.raises(DataError):
        pflego.load("digits", weight="w")
    with pytest.raises(DataError):
        pflego.load(lambda _: (np.eye(3), np.array([0, 1, 0])), ids=["a"], weight="w")


def test_settings_files_say_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path)
    (tmp_path / "settings.toml").write_text('[data]\nname = "wards.csv"\ncolumn = "ward"\nweight = "w"\n')
    federation = load_data(read_settings(tmp_path / "settings.toml"))
    assert weights(federation) == [[0.5, 2.0, 0.0], [3.0, 10.0]]


def test_a_frame_of_another_library_has_weights(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    federation = pflego.load(pandas.read_csv(table(tmp_path)), column="ward", weight="w")
    assert weights(federation) == [[0.5, 2.0, 0.0], [3.0, 10.0]]
