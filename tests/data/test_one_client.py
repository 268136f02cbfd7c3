"""A new client's file is read as the others' were, whatever it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pflego
from pflego.data.one_client import read_client
from pflego.data.schema import Schema


def pictures(folder: Path, *places: str) -> Path:
    rng = np.random.default_rng(0)
    for place in places:
        (folder / place).mkdir(parents=True)
        for number in range(5):
            Image.fromarray(rng.integers(0, 255, size=(6, 5), dtype=np.uint8)).save(
                folder / place / f"{number}.png"
            )
    return folder


def arrays_schema(*names: str) -> Schema:
    return Schema("arrays", (2,), "float32", "classification", class_names=names)


def test_a_file_that_says_what_is_for_testing_is_obeyed(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.savez(tmp_path / "a.npz", x_train=x[:4], y_train=[0, 1, 0, 1], x_test=x[4:], y_test=[1, 0])
    client, schema = read_client(tmp_path / "a.npz", "new", arrays_schema("0", "1"), seed=0)
    assert client.id == "new"
    assert client.x_train.tolist() == x[:4].tolist()
    assert client.y_test.tolist() == [1, 0]
    assert schema.class_names == ("0", "1")


def test_where_it_does_not_a_fifth_of_every_class_is_drawn(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2)
    client, _ = read_client(tmp_path / "a.npz", "new", arrays_schema("0", "1"), seed=0)
    assert sorted(client.y_test.tolist()) == [0, 0, 1, 1]
    rows = [*client.x_train.tolist(), *client.x_test.tolist()]
    assert sorted(rows) == x.tolist()
    again, _ = read_client(tmp_path / "a.npz", "new", arrays_schema("0", "1"), seed=0)
    assert again.x_test.tolist() == client.x_test.tolist()


def test_new_classes_come_after_the_known_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 2), np.float32), y=[7, 3, 9, 9, 3, 7])
    client, schema = read_client(tmp_path / "a.npz", "new", arrays_schema("3", "7"), seed=0)
    assert schema.class_names == ("3", "7", "9")
    assert sorted({*client.y_train.tolist(), *client.y_test.tolist()}) == [0, 1, 2]


def test_class_ids_will_do_where_classes_have_names(tmp_path: Path) -> None:
    """As in the data sets whose classes are called by words, and numbered in their files."""
    np.savez(tmp_path / "ids.npz", x=np.zeros((4, 2), np.float32), y=[1, 0, 1, 1])
    np.savez(tmp_path / "names.npz", x=np.zeros((4, 2), np.float32), y=["coat", "bag", "coat", "coat"])
    for name in ("ids", "names"):
        client, schema = read_client(tmp_path / f"{name}.npz", "new", arrays_schema("bag", "coat"), seed=0)
        assert schema.class_names == ("bag", "coat")
        assert sorted([*client.y_train.tolist(), *client.y_test.tolist()]) == [0, 1, 1, 1]


@pytest.mark.parametrize(
    "places", [("cat", "dog"), ("ann/cat", "ann/dog"), ("ann/cat", "ben/dog", "ann/dog")]
)
def test_folders_of_pictures(tmp_path: Path, places: tuple[str, ...]) -> None:
    folder = pictures(tmp_path, *places)
    schema = Schema("images", (6, 5), "uint8", "classification", class_names=("bird", "cat"))
    client, wide = read_client(folder, "ann", schema, seed=0)
    assert wide.class_names == ("bird", "cat", "dog")
    assert client.classes.tolist() == [1, 2]
    assert len(client.x_train) + len(client.x_test) == 10


def test_a_regression_keeps_its_units(tmp_path: Path) -> None:
    lines = [f"{i / 3:.3f},{10 * i + 100.25}" for i in range(20)]
    (tmp_path / "new.csv").write_text("a,y\n" + "\n".join(lines) + "\n")
    (tmp_path / "old.csv").write_text(
        "a,y,who\n" + "\n".join(f"{line},w{i % 2}" for i, line in enumerate(lines))
    )
    federation = pflego.load(tmp_path / "old.csv", column="who")
    assert federation.schema is not None
    client, schema = read_client(tmp_path / "new.csv", "new", federation.schema, seed=0)
    assert schema == federation.schema
    values = schema.in_units(np.concatenate([client.y_train, client.y_test]))
    assert np.sort(values).tolist() == pytest.approx([10 * i + 100.25 for i in range(20)], rel=1e-5)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    schema = arrays_schema("0", "1")
    with pytest.raises(pflego.UserError, match="there is no file or folder"):
        read_client(tmp_path / "absent.npz", "new", schema, seed=0)
    (tmp_path / "a.csv").write_text("a,b,label\n1,2,0\n")
    with pytest.raises(pflego.UserError, match="is a table, but the schema is one of arrays"):
        read_client(tmp_path / "a.csv", "new", schema, seed=0)
    with pytest.raises(pflego.UserError, match="but the schema is one of arrays"):
        read_client(pictures(tmp_path / "p", "cat"), "new", schema, seed=0)
    np.savez(tmp_path / "wide.npz", x=np.zeros((4, 3)), y=[0, 1, 0, 1])
    with pytest.raises(pflego.UserError, match=r"shape \(3,\)"):
        read_client(tmp_path / "wide.npz", "new", schema, seed=0)
