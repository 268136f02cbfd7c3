"""Files that somebody else wrote, or that were damaged: read, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego.data.schema import Schema
from pflego.settings.tables import Settings, read_settings
from tests.support.odd import fuzzed, mutated_bytes, mutated_json, tried

TABLE = "ward,age,colour,y\n" + "".join(
    f"{'ab'[n % 2]},{n * 1.5},{'red' if n % 3 else 'blue'},{n % 2}\n" for n in range(12)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a table, arrays, a run of three rounds and an exported model."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "wards.csv").write_text(TABLE)
    rng = np.random.default_rng(0)
    np.savez(folder / "arrays.npz", x=rng.normal(size=(6, 4)), y=rng.integers(0, 2, 6))
    federation = pflego.load(folder / "wards.csv", column="ward")
    model = pflego.models.build("mlp", (3,))
    run = pflego.train(
        federation, model, pflego.PFLEGO(steps=1), rounds=3, out=folder / "run", progress=False
    )
    run.export("a", folder / "model", formats=["safetensors"])
    return folder


SCHEMAS = [
    Schema.from_json(text).to_json()
    for text in [
        """{"format": "pflego schema 1", "kind": "table", "shape": [3], "dtype": "float32",
            "task": "classification", "label": "y", "client": "ward", "class_names": ["0", "1"],
            "features": [{"name": "age", "kind": "number", "mean": [8.0], "scale": [5.0]},
                         {"name": "colour", "kind": "category", "categories": ["blue", "red"]}]}""",
        """{"format": "pflego schema 1", "kind": "arrays", "shape": [4], "dtype": "float64",
            "task": "classification", "class_names": ["0", "1"], "features": []}""",
        """{"format": "pflego schema 1", "kind": "table", "shape": [1], "dtype": "float32", "task": "regression",
            "label": "y", "label_mean": 0.5, "label_scale": 0.5, "fill": true,
            "features": [{"name": "age", "kind": "number", "mean": [8.0]}]}""",
    ]
]


@fuzzed(150)
@given(st.sampled_from(SCHEMAS).flatmap(mutated_json))
def test_a_schema_that_was_changed_reads_data_or_is_refused(folder: Path, text: str) -> None:
    def use() -> None:
        schema = Schema.from_json(text)
        assert Schema.from_json(schema.to_json()).digest == schema.digest
        tried(lambda: schema.read(folder / "wards.csv"))
        tried(lambda: schema.read(folder / "arrays.npz"))
        tried(lambda: pflego.load(folder / "wards.csv", schema=schema))

    tried(use)


@fuzzed(60)
@given(st.sampled_from(SCHEMAS).flatmap(lambda text: mutated_bytes(text.encode())))
def test_a_schema_that_was_damaged_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "schema.json").write_bytes(content)
    tried(lambda: Schema.open(tmp_path / "schema.json"))


@fuzzed(60)
@given(data=st.data())
def test_an_archive_that_was_damaged_is_read_or_refused(
    folder: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = data.draw(mutated_bytes((folder / "arrays.npz").read_bytes()))
    (tmp_path / "site").mkdir(exist_ok=True)
    (tmp_path / "site" / "a.npz").write_bytes(content)
    tried(lambda: pflego.load(tmp_path / "site"))
    tried(lambda: pflego.load(str(tmp_path / "site" / "a.npz"), clients=2))


CELLS = st.sampled_from(
    [
        "",
        " ",
        "1",
        "2.5",
        "-3",
        "1e400",
        "nan",
        "inf",
        "x",
        " x",
        '"x"',
        '"',
        "\0",
        "\x1b[31m",
        "é",
        "true",
        "NA",
        "2024-01-01",
    ]
)


@fuzzed(80)
@given(
    st.lists(st.lists(CELLS, min_size=3, max_size=4), min_size=1, max_size=6),
    st.sampled_from(["a,b,y", "a,a,y", "a,,y", "a;b;y", "y"]),
    st.sampled_from(["utf-8", "latin-1", "utf-16"]),
)
def test_any_table_is_read_or_refused(
    tmp_path: Path, rows: list[list[str]], names: str, encoding: str
) -> None:
    text = "\n".join([names, *(",".join(row) for row in rows)])
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    tried(lambda: pflego.load(tmp_path / "t.csv", column="a"))
    tried(lambda: pflego.load(tmp_path / "t.csv", clients=2, gaps="mean", task="regression"))


@fuzzed(60)
@given(data=st.data())
def test_settings_that_were_damaged_are_read_or_refused(
    folder: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = data.draw(mutated_bytes((folder / "run" / "settings.toml").read_bytes()))
    (tmp_path / "settings.toml").write_bytes(content)
    tried(lambda: Settings.of(read_settings(tmp_path / "settings.toml")).check())


@fuzzed(40)
@given(data=st.data())
def test_the_card_of_a_model_that_was_changed_gives_the_model_or_is_refused(
    folder: Path, data: st.DataObject
) -> None:
    path = folder / "model" / "model.json"
    whole = path.read_text()
    try:
        path.write_text(data.draw(mutated_json(whole)))
        tried(lambda: pflego.load_model(folder / "model"))
    finally:
        path.write_text(whole)


@fuzzed(60)
@given(data=st.data())
def test_a_run_whose_files_were_damaged_is_opened_or_refused(folder: Path, data: st.DataObject) -> None:
    files = sorted(path for path in (folder / "run").rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    whole = path.read_bytes()
    try:
        path.write_bytes(data.draw(mutated_bytes(whole)))
        tried(lambda: pflego.open_run(folder / "run"))
    finally:
        path.write_bytes(whole)
