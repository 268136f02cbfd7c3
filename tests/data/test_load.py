from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego import Federation, UserError


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
