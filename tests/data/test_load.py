import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

import pflego
from pflego import Federation, SettingError, UserError
from pflego.data.division import PartitionName


def write_npz(path: Path, y_train: list[float], y_test: list[float], *, inputs: int | None = None) -> Path:
    """Samples numbered from 0 in training and from 100 in testing, so that they can be told apart."""
    x_train = np.arange(len(y_train) if inputs is None else inputs, dtype=float)[:, None]
    x_test = 100 + np.arange(len(y_test), dtype=float)[:, None]
    np.savez(path, x_train=x_train, y_train=np.array(y_train), x_test=x_test, y_test=np.array(y_test))
    return path


def test_digits_are_dealt_out_whole() -> None:
    federation = pflego.load("digits", clients=7, classes_per_client=3, seed=4)
    assert len(federation) == 7
    assert list(federation.ids) == list(range(7))
    assert federation.samples == 1438
    assert sum(len(client.x_test) for client in federation) == 359
    assert federation.classes == list(range(10))
    for client in federation:
        assert len(client.classes) == 3
        assert set(client.y_test.tolist()) <= set(client.classes.tolist())


def test_every_sample_goes_to_one_client(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz", [3, 3, 8, 8, 8, 3, 5, 5], [3, 8, 5, 5])
    federation = pflego.load(path, clients=3, classes_per_client=2)
    assert sorted(torch.cat([c.x_train for c in federation]).flatten().tolist()) == list(range(8))
    assert sorted(torch.cat([c.x_test for c in federation]).flatten().tolist()) == [100, 101, 102, 103]
    assert federation.classes == [3, 5, 8]


def test_a_regression_is_dealt_out_evenly() -> None:
    federation = pflego.load("diabetes", clients=5)
    assert federation.classes is None
    assert sorted(federation.sizes.tolist()) == [70, 71, 71, 71, 71]
    assert sorted(len(client.x_test) for client in federation) == [17, 17, 18, 18, 18]


def test_the_seed_decides_who_gets_what() -> None:
    def shares(seed: int) -> Federation:
        return pflego.load("digits", clients=5, classes_per_client=4, seed=seed)

    assert shares(1).fingerprint() == shares(1).fingerprint() != shares(2).fingerprint()


def test_two_classes_a_client_unless_said_otherwise() -> None:
    assert {len(client.classes) for client in pflego.load("digits")} == {2}


def test_how_a_federation_was_made_is_kept_for_the_record() -> None:
    made = pflego.load("digits", clients=5, classes_per_client=4, seed=3).source
    assert made.items() >= {"data": "digits", "clients": 5, "classes_per_client": 4}.items()


@pytest.mark.parametrize("clients", [0, -1, 2.0, "5", True])
def test_clients_are_a_whole_number_above_zero(clients: int) -> None:
    with pytest.raises(UserError, match="clients must be a whole number above 0"):
        pflego.load("digits", clients=clients)


@pytest.mark.parametrize("each", [0, -1, 1.5, "2"])
def test_classes_per_client_are_a_whole_number_above_zero(each: int) -> None:
    with pytest.raises(UserError, match="classes_per_client must be a whole number above 0"):
        pflego.load("digits", classes_per_client=each)


@pytest.mark.parametrize(
    ("clients", "each", "reason"), [(20, 11, "from 1 to 10"), (4, 2, "cannot hold all 10")]
)
def test_impossible_splits_are_refused(clients: int, each: int, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        pflego.load("digits", clients=clients, classes_per_client=each)


def test_a_regression_has_no_classes_to_divide() -> None:
    with pytest.raises(UserError, match="leave classes_per_client out"):
        pflego.load("diabetes", classes_per_client=2)


@pytest.mark.parametrize("data", ["digits", "diabetes"])
def test_more_clients_than_samples_are_refused(data: str) -> None:
    with pytest.raises(
        UserError, match=f"{data} is too small for 2000 clients: client .* would get no sample"
    ):
        pflego.load(data, clients=2000)


def test_a_client_may_be_left_without_test_data(tmp_path: Path) -> None:
    federation = pflego.load(write_npz(tmp_path / "own.npz", [0, 0, 0], [0]), clients=3, classes_per_client=1)
    assert sorted(len(client.x_test) for client in federation) == [0, 0, 1]


@pytest.mark.parametrize("inputs", [3, 5])
def test_inputs_and_labels_of_different_lengths_are_refused(tmp_path: Path, inputs: int) -> None:
    path = write_npz(tmp_path / "own.npz", [0, 0, 1, 1], [0], inputs=inputs)
    with pytest.raises(
        UserError, match=rf"training inputs of shape \({inputs}, .*\), but labels of shape \(4,\)"
    ):
        pflego.load(path, clients=2, classes_per_client=2)


@pytest.mark.parametrize("label", [1, 5])
def test_a_test_sample_of_a_class_nobody_trains_on_is_kept_as_an_error(tmp_path: Path, label: int) -> None:
    path = write_npz(tmp_path / "own.npz", [0, 2, 0, 2], [0, 2, label])
    federation = pflego.load(path, clients=2, classes_per_client=1)
    assert sorted(torch.cat([client.y_test for client in federation]).tolist()) == sorted([0, 2, label])


def test_negative_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="classes are numbered from 0"):
        pflego.load(write_npz(tmp_path / "own.npz", [-1, 1, -1, 1], [1]), clients=2, classes_per_client=2)


def test_the_data_folder_may_be_named(tmp_path: Path) -> None:
    write_npz(tmp_path / "digits.npz", [0, 1, 0, 1], [0, 1])
    assert pflego.load("digits", clients=2, data_dir=tmp_path).samples == 4


def digest(federation: Federation) -> str:
    """Of every number that every client holds."""
    found = hashlib.sha256()
    for client in federation:
        found.update(repr(client.id).encode())
        for tensor in (client.x_train, client.y_train, client.x_test, client.y_test):
            found.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize(
    ("data", "settings", "was"),
    [
        ("digits", {}, "efe94e21c9c58f77"),
        ("digits", {"clients": 7, "classes_per_client": 3, "seed": 4}, "a1b7a7e0cb4ebcfc"),
        ("diabetes", {"clients": 5, "seed": 2}, "8c3c1088463b6bd7"),
    ],
)
def test_a_federation_is_what_it_was_in_version_0_1(data: str, settings: dict[str, int], was: str) -> None:
    assert digest(pflego.load(data, **settings)) == was  # type: ignore[arg-type]


@pytest.mark.parametrize(("word", "number"), [("high", 2), ("medium", 5), ("none", 10)])
def test_degrees_of_personalisation_are_numbers_of_classes(
    word: Literal["high", "medium", "none"], number: int
) -> None:
    federation = pflego.load("digits", clients=10, classes_per_client=word)
    assert {len(client.classes) for client in federation} == {number}
    assert federation.source["classes_per_client"] == number
    assert digest(federation) == digest(pflego.load("digits", clients=10, classes_per_client=number))


def test_a_degree_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="above 0 or high or medium or none, not 'low'"):
        pflego.load("digits", classes_per_client="low")  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"partition": "dirichlet", "alpha": 0.1}, {"partition": "iid"}])
def test_other_partitions_deal_out_everything(settings: dict[str, object]) -> None:
    federation = pflego.load("digits", clients=30, **settings)  # type: ignore[arg-type]
    assert len(federation) == 30
    assert federation.samples == 1438
    assert sum(len(client.x_test) for client in federation) == 359
    assert federation.classes == list(range(10))
    assert federation.sizes.min() >= 1
    assert federation.source.items() >= settings.items()


def test_nobody_is_tested_on_a_class_it_got_none_of_by_dirichlet() -> None:
    for client in pflego.load("digits", clients=30, partition="dirichlet", alpha=0.05):
        assert set(client.y_test.tolist()) <= set(client.classes.tolist())


def test_dirichlet_has_an_alpha_of_a_half_unless_said_otherwise() -> None:
    assert pflego.load("digits", partition="dirichlet").source["alpha"] == 0.5


def test_what_is_the_same_has_the_same_record() -> None:
    assert pflego.load("digits", partition="classes").source == pflego.load("digits").source
    assert pflego.load("diabetes", partition="iid").source == pflego.load("diabetes").source


def with_column(path: Path, values: object) -> Path:
    """Six samples and three for testing, numbered, and whose they are."""
    column = np.array(values)
    np.savez(
        path,
        x_train=np.arange(6.0)[:, None],
        y_train=np.array([0, 1, 0, 1, 0, 1]),
        x_test=100 + np.arange(3.0)[:, None],
        y_test=np.array([0, 1, 0]),
        writer_train=column,
        writer_test=column[:3],
    )
    return path


@pytest.mark.parametrize(
    ("values", "ids"),
    [([5, 3, 5, 3, 3, 5], [3, 5]), (["bo", "ann", "bo", "ann", "ann", "bo"], ["ann", "bo"])],
)
def test_a_column_names_the_clients(tmp_path: Path, values: list[object], ids: list[object]) -> None:
    path = with_column(tmp_path / "own.npz", values)
    federation = pflego.load(path, partition="column", column="writer")
    assert digest(federation) == digest(pflego.load(path, column="writer"))
    assert list(federation.ids) == ids
    assert [client.x_train.flatten().tolist() for client in federation] == [[1, 3, 4], [0, 2, 5]]
    assert [client.x_test.flatten().tolist() for client in federation] == [[101], [100, 102]]
    made = federation.source
    assert made == {
        "data": str(path), "clients": 2, "column": "writer", "partition": "column", "data_seed": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"partition": "column"}, "needs column=, the name of one; it has writer"),
        ({"partition": "column", "column": "author"}, "no column 'author'; it has writer"),
        (
            {"column": "writer", "partition": "iid"},
            "column is for partition='column', but own is divided by iid",
        ),
        ({"partition": "column", "column": "writer", "clients": 3}, "own has 2 clients, one for each writer"),
        ({"partition": "column", "column": "writer", "alpha": 1}, "alpha is for partition='dirichlet'"),
        ({"partition": "iid", "classes_per_client": 2}, "classes_per_client is for partition='classes'"),
        ({"alpha": 0.3}, "alpha is for partition='dirichlet', but own is divided by classes: leave it out"),
        ({"partition": "dirichlet", "alpha": 0}, "alpha must be a number above 0"),
        ({"partition": "dirichlet", "alpha": "half"}, "alpha must be a number above 0"),
        ({"partition": "dirichlt"}, "unknown partition 'dirichlt': did you mean 'dirichlet'"),
    ],
)
def test_arguments_that_do_not_apply_are_refused(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    path = with_column(tmp_path / "own.npz", [5, 3, 5, 3, 3, 5])
    with pytest.raises(UserError, match=reason):
        pflego.load(path, **settings)  # type: ignore[arg-type]


def test_a_column_of_fractions_names_nobody(tmp_path: Path) -> None:
    path = with_column(tmp_path / "own.npz", [0.5] * 6)
    with pytest.raises(UserError, match="writer is float64; clients are named by whole numbers or texts"):
        pflego.load(path, partition="column", column="writer")


@pytest.mark.parametrize("kind", ["classes", "dirichlet"])
def test_a_regression_is_not_divided_by_classes(kind: PartitionName) -> None:
    with pytest.raises(UserError, match=f"no classes for partition='{kind}': take 'iid'"):
        pflego.load("diabetes", partition=kind)


@pytest.mark.parametrize("kind", ["dirichlet", "iid"])
def test_fewer_samples_than_clients_are_refused_by_any_partition(kind: PartitionName) -> None:
    with pytest.raises(UserError, match="digits is too small for 2000 clients"):
        pflego.load("digits", clients=2000, partition=kind)


def test_images_are_bytes_and_in_memory_once(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).integers(256, size=(6000, 28, 28), dtype=np.uint8), np.arange(6000) % 10
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
    federation = pflego.load("mnist", clients=10, data_dir=tmp_path)
    tensors = [client.x_train for client in federation]
    assert all(tensor.dtype == torch.uint8 for tensor in tensors)
    places = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in tensors)
    assert all(start + length == after for (start, length), (after, _) in pairwise(places))
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("partition", ["classes", "iid", "dirichlet"])
def test_more_clients_than_samples_are_refused_before_any_list_of_them_is_made(
    partition: PartitionName,
) -> None:
    with pytest.raises(
        UserError, match=r"too small for 10{15} clients"
    ):  # a list of them would take petabytes
        pflego.load("digits", clients=10**15, partition=partition)
