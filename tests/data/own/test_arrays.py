"""Clients as arrays: .npz files, a client a file, or a function."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego import UserError
from pflego.data.own.arrays import read
from pflego.federation.roster import ClientId

X = np.arange(20, dtype=np.float32).reshape(10, 2)
WORDS = np.array(["no", "yes"] * 5)


def save(path: Path, **arrays: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]


def test_a_file_a_client_with_x_and_y_is_divided_for_testing(tmp_path: Path) -> None:
    save(tmp_path / "b.npz", x=X, y=WORDS)
    save(tmp_path / "a.npz", x=X + 100, y=WORDS)
    federation = pflego.load(tmp_path, test_share=0.4)
    assert list(federation.ids) == ["a", "b"]
    assert [len(client.x_test) for client in federation] == [4, 4]
    for client in federation:
        assert client.y_train.bincount().tolist() == [3, 3]
        assert (torch.cat([client.x_train, client.x_test])[:, 0] % 100).sort().values.tolist() == X[
            :, 0
        ].tolist()
    assert federation.schema is not None
    assert (federation.schema.kind, federation.schema.class_names) == ("arrays", ("no", "yes"))
    assert federation.source["test_share"] == 0.4


def test_a_file_may_say_itself_what_is_for_testing(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x_train=X, y_train=np.arange(10) - 5, x_test=X[:2], y_test=np.array([4, 7]))
    federation = pflego.load(tmp_path)
    assert federation.schema is not None
    assert federation.schema.class_names == (*map(str, range(-5, 5)), "7")
    assert federation[0].y_test.tolist() == [9, 10]
    assert "test_share" not in federation.source
    with pytest.raises(UserError, match="test_share is for data that do not say"):
        pflego.load(tmp_path, test_share=0.1)


def test_folders_may_say_it(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a.npz", x=X, y=WORDS)
    save(tmp_path / "test" / "a.npz", x=X[:3], y=WORDS[:3])
    save(tmp_path / "train" / "b.npz", x=X, y=WORDS)
    assert [len(client.x_test) for client in pflego.load(tmp_path)] == [3, 0]
    save(tmp_path / "test" / "c.npz", x=X[:3], y=WORDS[:3])
    with pytest.raises(UserError, match="client 'c' has nothing to train on"):
        pflego.load(tmp_path)


def test_a_function_gives_the_samples_of_a_client() -> None:
    def ward(id: ClientId) -> tuple[np.ndarray, torch.Tensor]:
        return X + int(id), torch.arange(10) % 2

    federation = pflego.load(ward, ids=range(3), test_share=0)
    assert list(federation.ids) == [0, 1, 2]
    assert federation[2].x_train.tolist() == (X + 2).tolist()
    assert "data" not in federation.source


def test_a_function_may_set_test_samples_aside_itself() -> None:
    federation = pflego.load(lambda id: (X[:6], WORDS[:6], X[6:], WORDS[6:]), ids=["a"])
    assert federation[0].x_test.tolist() == X[6:].tolist()


def test_fractions_are_a_regression_and_stay_as_they_are() -> None:
    y = np.linspace(0, 1, 30).reshape(10, 3)
    federation = pflego.load(lambda id: (X, y), ids=["a"], test_share=0)
    assert federation.classes is None
    assert federation[0].y_train.tolist() == y.tolist()
    whole = pflego.load(lambda id: (X, np.arange(10)), ids=["a"], test_share=0, task="regression")
    assert whole[0].y_train.tolist() == list(range(10))
    assert whole.classes is None


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": X}, r"a.npz has x; it needs x and y, or x_train"),
        ({"x": X, "y": WORDS[:4]}, r"client 'a' has inputs of shape \(10, 2\), but labels of shape \(4,\)"),
        ({"x": X, "y": np.zeros((10, 2), int)}, r"class labels must be one a sample, not of shape \(10, 2\)"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, arrays: dict[str, Any], reason: str) -> None:
    save(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=reason):
        pflego.load(tmp_path)


def test_files_are_read_by_several_threads(tmp_path: Path) -> None:
    """Python 3.11 counts the depth of syntax trees, of which NumPy makes one per header, for all threads together."""
    save(tmp_path / "a.npz", x=X, y=WORDS)

    def at_a_depth(number: int) -> int:
        return at_a_depth(number - 1) if number % 7 else len(read(tmp_path / "a.npz"))

    def another_threads_turn(phase: str, info: object) -> None:
        time.sleep(0)

    often, thresholds = (3, 1000, 1000), gc.get_threshold()
    gc.callbacks.append(another_threads_turn)
    gc.set_threshold(*often)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(at_a_depth, range(700))) == {2}
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(another_threads_turn)


def test_labels_of_different_types_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x=X, y=WORDS)
    save(tmp_path / "b.npz", x=X, y=np.arange(10))
    with pytest.raises(UserError, match="labels are of different types, <U3, int64"):
        pflego.load(tmp_path)


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (lambda id: (X, WORDS), {}, r"needs the clients: ids=\[...\]"),
        (lambda id: X, {"ids": ["a"]}, "must give .x, y. or .x_train, y_train, x_test, y_test., not ndarray"),
        (lambda id: (X, WORDS, X), {"ids": ["a"]}, "must give .*, not 3"),
        (lambda id: (X, WORDS), {"ids": []}, "ids must name every client once, not nobody"),
        (
            lambda id: (X, WORDS),
            {"ids": ["a", "b", "a"]},
            "ids must name every client once, not 'a', 'b', 'a'",
        ),
        (lambda id: (X, WORDS), {"ids": ["a"], "label": "y"}, "label is for tables and pictures"),
        (lambda id: (X, WORDS), {"ids": ["a"], "column": "y"}, "column is nothing for a function"),
        (lambda id: (X, WORDS), {"ids": ["a", "b"], "clients": 3}, "has 2 clients of its own"),
        (
            lambda id: (X, WORDS),
            {"ids": ["a"], "task": "regression"},
            "holds texts: a regression needs numbers",
        ),
        (lambda id: {}[id], {"ids": ["a"]}, r"<lambda>\('a'\) failed: KeyError: 'a'"),
        (
            lambda id: (X, np.array([0, "x"] * 5, dtype=object)),
            {"ids": ["a"]},
            "labels must be numbers or texts",
        ),
        (7, {}, "data must be a name, a path, a table, a data set or a function .*, not int"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(function: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        pflego.load(function, **options)


def test_texts_that_pandas_keeps_as_objects_are_classes() -> None:
    federation = pflego.load(lambda _: (X, WORDS.astype(object)), ids=["a"])
    assert federation.fingerprint() == pflego.load(lambda _: (X, WORDS), ids=["a"]).fingerprint()


def test_a_schema_numbers_the_classes_as_it_did() -> None:
    whole = pflego.load(lambda id: (X, np.array([5, 6, 7, 8, 9] * 2)), ids=["a"], test_share=0)
    assert whole.schema is not None
    own = pflego.load(lambda id: (X, np.array([9, 7] * 5)), ids=["b"], test_share=0, schema=whole.schema)
    assert own[0].y_train.tolist() == [4, 2] * 5
    with pytest.raises(UserError, match="'3' is no class of the schema; it has 5, 6, 7, 8, 9"):
        pflego.load(lambda id: (X, np.array([3, 7] * 5)), ids=["b"], schema=whole.schema)
    with pytest.raises(
        UserError, match=r"arrays of shape \(1,\) a sample, but the schema .* of shape \(2,\)"
    ):
        pflego.load(lambda id: (X[:, :1], np.array([9, 7] * 5)), ids=["b"], schema=whole.schema)


def test_a_run_of_a_function_is_opened_again_with_its_federation(tmp_path: Path) -> None:
    federation = pflego.load(lambda id: (X, WORDS), ids=["a", "b"])
    pflego.train(
        federation,
        pflego.models.build("mlp", (2,)),
        pflego.PFLEGO(steps=2),
        rounds=1,
        out=tmp_path / "run",
        progress=False,
    )
    with pytest.raises(UserError, match=r"open the run there: pflego.open_run\(folder, federation=...\)"):
        pflego.open_run(tmp_path / "run")
    assert pflego.open_run(tmp_path / "run", federation=federation).federation is federation
