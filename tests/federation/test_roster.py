import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import pflego
from pflego import PFLEGO, Client, DataError, Federation, Model, train
from pflego.federation.roster import ClientId
from pflego.learning.task import Classification, Regression
from tests.support.reference import world

X = np.arange(6.0).reshape(3, 2)
Y = np.array([4, 0, 4])


def with_value(array: npt.NDArray[Any], place: tuple[int, ...], value: float) -> npt.NDArray[Any]:
    changed = array.astype(np.float64)
    changed[place] = value
    return changed


def test_classes_are_those_of_the_training_labels_in_ascending_order() -> None:
    client = Client("a", np.zeros((4, 2)), np.array([7, 7, 3, 7]), np.zeros((1, 2)), np.array([5]))
    assert client.classes.tolist() == [3, 7]


def test_regression_has_no_classes() -> None:
    client = Client("a", X, np.array([0.5, 1.0, 2.0]))
    assert len(client.classes) == 0
    assert Federation([client]).classes is None


def test_labels_below_zero_are_refused_by_row() -> None:
    with pytest.raises(DataError, match=r"'a', training data: the label in row 1 is -2"):
        Client("a", X, np.array([0, -2, 1]))


def test_test_labels_below_zero_are_refused() -> None:
    with pytest.raises(DataError, match=r"'a', test data: the label in row 2 is -1"):
        Client("a", X, Y, X, np.array([0, 4, -1]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_input_that_is_not_finite_is_refused_by_row_and_column(value: float) -> None:
    with pytest.raises(DataError, match=rf"'a', training data: the input in row 2, column 1 is {value}"):
        Client("a", with_value(X, (2, 1), value), Y)
    with pytest.raises(DataError, match=rf"'a', test data: the input in row 0, column 1 is {value}"):
        Client("a", X, Y, with_value(X, (0, 1), value), Y)


def test_an_image_value_that_is_not_finite_is_refused_by_its_whole_place() -> None:
    images = with_value(np.zeros((3, 4, 5)), (1, 2, 3), np.nan)
    with pytest.raises(DataError, match=r"row 1, column \(2, 3\) is nan"):
        Client("a", images, Y)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_target_that_is_not_finite_is_refused_by_row(value: float) -> None:
    with pytest.raises(DataError, match=rf"the label in row 1 is {value}"):
        Client("a", X, with_value(np.zeros(3), (1,), value))
    with pytest.raises(DataError, match=rf"the label in row 1, column 0 is {value}"):
        Client("a", X, with_value(np.zeros((3, 2)), (1, 0), value))


def test_a_client_without_training_data_is_refused() -> None:
    with pytest.raises(DataError, match="'a' has no training data"):
        Client("a", X[:0], Y[:0])


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [(X, Y[:2]), (X[:2], Y), (X, np.array(3)), (np.array(3.0), Y)],
    ids=["fewer labels", "fewer inputs", "one label", "one input"],
)
def test_inputs_and_labels_of_different_lengths_are_refused(
    inputs: npt.NDArray[Any], labels: npt.NDArray[Any]
) -> None:
    with pytest.raises(DataError, match=r"training data: .* inputs but .* labels"):
        Client("a", inputs, labels)


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [(X, Y[:2]), (X[:0], Y), (X, Y[:0]), (np.array(3.0), np.array(3))],
    ids=["fewer labels", "no inputs", "no labels", "no dimension"],
)
def test_test_inputs_and_labels_of_different_lengths_are_refused(
    inputs: npt.NDArray[Any], labels: npt.NDArray[Any]
) -> None:
    with pytest.raises(DataError, match=r"test data: .* inputs but .* labels"):
        Client("a", X, Y, inputs, labels)


def test_half_a_test_set_is_refused() -> None:
    with pytest.raises(DataError, match="belong together"):
        Client("a", X, Y, x_test=X)
    with pytest.raises(DataError, match="belong together"):
        Client("a", X, Y, y_test=Y)


def test_a_test_set_of_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match=r"training inputs have shape \(2,\) a sample, test inputs \(3,\)"):
        Client("a", X, Y, np.zeros((1, 3)), Y[:1])
    with pytest.raises(DataError, match=r"training labels have shape \(\) a sample, test labels \(1,\)"):
        Client("a", X, Y.astype(float), X, Y.astype(float)[:, None])


def test_classes_for_training_and_numbers_for_testing_are_refused() -> None:
    with pytest.raises(DataError, match="training labels are int64, test labels float64"):
        Client("a", X, Y, X, Y.astype(float))


def test_class_labels_of_more_than_one_number_per_sample_are_refused() -> None:
    with pytest.raises(DataError, match=r"not of shape \(3, 1\)"):
        Client("a", X, Y[:, None])


@pytest.mark.parametrize("kind", [object, str, complex])
def test_values_that_are_no_numbers_are_refused(kind: type) -> None:
    with pytest.raises(DataError, match="cannot be trained on; give numbers"):
        Client("a", X.astype(kind), Y)
    with pytest.raises(DataError, match="cannot be trained on; give numbers"):
        Client("a", X, Y.astype(kind))


def test_complex_tensors_are_refused_like_complex_arrays() -> None:
    with pytest.raises(DataError, match="cannot be trained on; give numbers"):
        Client("a", torch.zeros(3, 2, dtype=torch.complex64), Y)


def test_a_test_set_may_be_empty_or_left_out() -> None:
    for client in (Client("a", X, Y), Client("a", X, Y, X[:0], Y[:0])):
        assert client.x_test.shape == (0, 2)
        assert client.y_test.shape == (0,)


def test_one_sample_is_enough() -> None:
    assert Client("a", X[:1], Y[:1]).classes.tolist() == [4]


@pytest.mark.parametrize(
    "kind", ["bool", "uint8", "int16", "uint16", "int64", "float16", "float64", ">f4", ">i2"]
)
def test_arrays_of_every_kind_of_number_keep_their_values(kind: str) -> None:
    x = np.array([[0, 1], [1, 1], [1, 0]]).astype(kind)
    assert Client("a", x, Y).x_train.tolist() == x.tolist()


def test_long_doubles_are_accepted() -> None:
    assert Client("a", X.astype(np.longdouble), Y).x_train.tolist() == X.tolist()


@pytest.mark.parametrize("kind", ["bool", "uint8", "uint16", "uint32", "uint64", "int8"])
def test_labels_of_every_kind_of_whole_number_are_classes(kind: str) -> None:
    client = Client("a", X, np.array([1, 0, 1]).astype(kind))
    assert client.classes.tolist() == [0, 1]
    assert client.y_train.dtype == torch.int64


def test_bytes_stay_bytes() -> None:
    assert Client("a", np.full((3, 2), 255, np.uint8), Y).x_train.dtype == torch.uint8


def test_tensors_are_accepted_without_their_history() -> None:
    x = torch.ones(3, 2, requires_grad=True) * 2
    client = Client("a", x, torch.tensor([0, 1, 2], dtype=torch.uint8))
    assert not client.x_train.requires_grad
    assert client.x_train.tolist() == [[2.0, 2.0]] * 3
    assert client.classes.tolist() == [0, 1, 2]


@pytest.mark.parametrize("view", [X[::-1], X[:, ::-1], np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2]])
def test_views_that_are_not_contiguous_keep_their_order(view: npt.NDArray[Any]) -> None:
    assert Client("a", view, Y).x_train.tolist() == view.tolist()


def test_arrays_that_may_not_be_written_are_accepted() -> None:
    x, y = X.copy(), Y.copy()
    x.flags.writeable = y.flags.writeable = False
    assert Client("a", x, y).x_train.tolist() == X.tolist()


def test_a_client_says_what_it_has() -> None:
    assert repr(Client("a", X, Y, X[:1], Y[:1])) == "Client('a', 3 training and 1 test samples)"


def test_a_federation_counts_samples_and_joins_classes() -> None:
    federation = Federation([Client("a", X, Y), Client("b", X[:1], np.array([2]))])
    assert federation.sizes.tolist() == [3, 1]
    assert federation.samples == 4
    assert federation.classes == [0, 2, 4]
    assert isinstance(federation.task, Classification)
    assert [client.id for client in federation] == list(federation.ids) == ["a", "b"]
    assert repr(federation) == "Federation(2 clients, 4 training samples, 3 classes)"


def test_float_labels_make_a_regression() -> None:
    assert isinstance(Federation([Client("a", X, Y.astype(float))]).task, Regression)


def test_a_federation_without_clients_is_refused() -> None:
    with pytest.raises(DataError, match="at least one client"):
        Federation([])


@pytest.mark.parametrize("ids", [("a", "a"), (1, 1), (1, "1"), ("1", 1)], ids=str)
def test_two_clients_of_one_name_are_refused(ids: tuple[ClientId, ClientId]) -> None:
    with pytest.raises(DataError, match=f"two clients are called '{ids[0]}'"):
        Federation([Client(name, X, Y) for name in ids])


def test_mixed_tasks_are_refused() -> None:
    with pytest.raises(DataError, match="'a' and 'b' have different tasks"):
        Federation([Client("a", X, Y), Client("b", X, Y.astype(float))])


def test_clients_of_different_shapes_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"'a' and 'c' differ in the shape of their inputs: \(2,\) and \(1,\)"
    ):
        Federation([Client("a", X, Y), Client("b", X, Y), Client("c", X[:, :1], Y)])
    with pytest.raises(DataError, match=r"'a' and 'b' differ in the shape of their labels: \(2,\) and \(\)"):
        Federation([Client("a", X, X), Client("b", X, X[:, 0])])


def test_bytes_and_other_numbers_do_not_mix() -> None:
    """Bytes are divided by 255 and floats are not, so that one model cannot take both."""
    of_bytes, of_floats = Client("a", X.astype(np.uint8), Y), Client("b", X, Y)
    for clients in ([of_bytes, of_floats], [of_floats, of_bytes]):
        with pytest.raises(DataError, match=f"{clients[1].id!r} has inputs of type"):
            Federation(clients)
    Federation([of_floats, Client("c", X.astype(np.float32), Y), Client("d", X.astype(np.int64), Y)])
    Federation([of_bytes, Client("c", X.astype(np.uint8), Y)])


def test_an_unknown_client_is_refused_with_some_that_exist() -> None:
    federation = Federation([Client(name, X, Y) for name in "abcdefg"])
    with pytest.raises(
        DataError, match=r"no client is called 'z'; .* 'a', 'b', 'c', 'd', 'e', \.\.\. \(7 in all\)"
    ):
        federation.client("z")


def test_a_number_is_not_its_own_spelling() -> None:
    with pytest.raises(DataError, match="no client is called '0'"):
        Federation([Client(0, X, Y)]).client("0")


def test_clients_are_found_by_id_and_by_position() -> None:
    federation = Federation([Client("a", X, Y), Client("b", X[:1], Y[:1])])
    assert federation.position("b") == 1
    assert federation.client("b") is federation[1]


def test_a_lazy_federation_loads_only_what_is_asked_for() -> None:
    loaded: list[ClientId] = []

    def load(client: ClientId) -> Client:
        loaded.append(client)
        return Client(client, X, Y)

    federation = Federation.lazy(range(1_000_000), load, sizes=np.full(1_000_000, 3), classes=[4, 0])
    assert len(federation) == 1_000_000
    assert federation.samples == 3_000_000
    assert federation.classes == [0, 4]
    assert loaded == []
    assert federation[999_999].id == 999_999
    assert federation.client(7).id == 7
    assert loaded == [999_999, 7]
    federation.fingerprint()
    assert loaded == [999_999, 7, 0]


def test_a_client_that_somebody_has_is_not_loaded_again() -> None:
    asked: list[ClientId] = []

    def load(client_id: ClientId) -> Client:
        asked.append(client_id)
        return Client(client_id, np.zeros((2, 3)), np.array([0, 1]))

    federation = Federation.lazy(range(5), load, sizes=[2] * 5, classes=[0, 1])
    held = federation[3]
    assert federation[3] is held
    assert asked == [3]
    del held
    federation[3]
    assert asked == [3, 3]  # nobody had it any more: a million clients are not kept
    listed = Federation([Client(i, np.zeros((2, 3)), np.array([0, 1])) for i in "ab"])
    assert listed[0].id == "a"
    copied = pickle.loads(pickle.dumps(listed))
    assert copied[0].id == "a"


def test_a_lazy_federation_is_what_its_list_is() -> None:
    clients = {"b": Client("b", X, Y), "a": Client("a", X[:1], np.array([2]))}

    def load(client: ClientId) -> Client:
        return clients[str(client)]

    whole = Federation(clients.values())
    lazy = Federation.lazy(["b", "a"], load, sizes=[3, 1], classes=[0, 2, 4])
    assert repr(lazy) == repr(whole)
    assert lazy.fingerprint() == whole.fingerprint()


@pytest.mark.parametrize("sizes", [[3], [3, 0], [[3], [3]], [3, -1]], ids=str)
def test_a_lazy_federation_needs_a_sample_count_a_client(sizes: list[int]) -> None:
    with pytest.raises(DataError, match="federation of 2 clients needs as many sample counts"):
        Federation.lazy(["a", "b"], lambda client: Client(client, X, Y), sizes=sizes, classes=[0, 4])


@pytest.mark.parametrize("told", [2, 4])
def test_a_lazy_federation_that_was_told_another_size_is_refused(told: int) -> None:
    """Sizes decide how much a client counts, so that a wrong one would make wrong weights."""
    federation = Federation.lazy(
        ["a", "b"], lambda client: Client(client, X, Y), sizes=[3, told], classes=[0, 4]
    )
    assert federation[0].id == "a"
    with pytest.raises(DataError, match=f"'b' has 3 training samples, .* {told}"):
        _ = federation[1]
    with pytest.raises(DataError, match="'b' has 3 training samples"):
        federation.client("b")
    with pytest.raises(DataError, match="'b' has 3 training samples"):
        train(federation, Model(nn.Linear(2, 2), features=2), PFLEGO(steps=2), rounds=1)


def test_what_a_load_function_raises_names_function_and_client() -> None:
    def from_database(client: ClientId) -> Client:
        raise ConnectionError(f"no route to {client}\nand more")

    federation = Federation.lazy(["a"], from_database, sizes=[3], classes=[0, 4])
    with pytest.raises(
        DataError, match=r"from_database\('a'\) failed: ConnectionError: no route to a$"
    ) as raised:
        _ = federation[0]
    assert isinstance(raised.value.__cause__, ConnectionError)


def test_a_lazy_federation_refuses_bytes_beside_floats_when_it_meets_them() -> None:
    kinds = {"a": np.float64, "b": np.float32, "c": np.uint8}
    federation = Federation.lazy(
        list(kinds),
        lambda client: Client(client, X.astype(kinds[str(client)]), Y),
        sizes=[3, 3, 3],
        classes=[0, 4],
    )
    assert [federation[i].id for i in (0, 1)] == ["a", "b"]
    with pytest.raises(DataError, match=r"'c' has inputs of type torch\.uint8"):
        _ = federation[2]
    with pytest.raises(DataError, match=r"'c' has inputs of type torch\.uint8"):
        train(federation, Model(nn.Linear(2, 2), features=2), PFLEGO(steps=2), rounds=1)


def test_a_lazy_federation_without_clients_is_refused() -> None:
    with pytest.raises(DataError, match="federation of 0 clients"):
        Federation.lazy([], lambda client: Client(client, X, Y), sizes=[], classes=[0])


@pytest.mark.parametrize("ids", [["a", "a"], [1, "1"]], ids=str)
def test_two_lazy_clients_of_one_name_are_refused(ids: list[ClientId]) -> None:
    with pytest.raises(DataError, match="two clients are called"):
        Federation.lazy(ids, lambda client: Client(client, X, Y), sizes=[3, 3], classes=[0, 4])


def test_the_same_federation_has_the_same_fingerprint() -> None:
    assert (
        Federation([Client("a", X, Y)]).fingerprint() == Federation([Client("a", X.copy(), Y)]).fingerprint()
    )


@pytest.mark.parametrize(
    "other",
    [
        Client("b", X, Y),
        Client("a", X + 1, Y),
        Client("a", X, Y + 1),
        Client("a", X[:2], Y[:2]),
        Client("a", X, Y, X[:1], Y[:1]),
        Client("a", X.astype(np.float32), Y),
    ],
    ids=["id", "inputs", "labels", "length", "test set", "precision"],
)
def test_the_fingerprint_changes_with_the_data(other: Client) -> None:
    assert Federation([Client("a", X, Y)]).fingerprint() != Federation([other]).fingerprint()


def test_tensors_numpy_has_no_name_for_have_a_fingerprint() -> None:
    federations = [Federation([Client("a", torch.full((3, 2), v, dtype=torch.bfloat16), Y)]) for v in (0, 1)]
    assert federations[0].fingerprint() != federations[1].fingerprint()


def test_ids_are_texts_or_whole_numbers_and_no_two_have_one_name() -> None:
    x, y = np.zeros((2, 2)), np.array([0, 1])
    for odd in (
        True,
        None,
        1.5,
        float("nan"),
        b"a",
        (1, 2),
        [1],
        np.float64(1),
        np.bool_(True),
        "\ud800",
    ):
        with pytest.raises(DataError, match="id must be"):
            pflego.Client(odd, x, y)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="id must be"):
            pflego.Federation.lazy(
                [odd],  # type: ignore[list-item]
                lambda _: pflego.Client(0, x, y),
                sizes=[2],
                classes=[0, 1],
            )
    with pytest.raises(DataError, match="two clients are called '1'"):
        pflego.Federation([pflego.Client(1, x, y), pflego.Client("1", x, y)])
    names: list[Any] = [np.int64(1), " b", "b"]
    federation = pflego.Federation([pflego.Client(name, x, y) for name in names])
    assert list(federation.ids) == [1, " b", "b"]
    assert type(federation.ids[0]) is int
    assert federation.position(np.int64(1)) == 0  # type: ignore[arg-type]
    for odd in (True, [1], None):  # True == 1, and would be found
        with pytest.raises(DataError, match="id must be"):
            federation.client(odd)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "weights",
    [
        [1.0, -0.5, 1.0],
        [1.0, float("nan"), 1.0],
        [1.0, float("inf"), 1.0],
        [0.0, 0.0, 0.0],
        [1e308, 1e308, 1e308],
        [1.0, 1.0],
        [[1.0], [1.0], [1.0]],
        ["1", "2", "3"],
        1.0,
    ],
    ids=str,
)
def test_weights_that_say_nothing_are_refused(weights: object) -> None:
    with pytest.raises(DataError):
        Client("a", X, Y, weights=weights)  # type: ignore[arg-type]


def test_a_wrong_weight_is_refused_by_row() -> None:
    with pytest.raises(DataError, match="row 1"):
        Client("a", X, Y, weights=np.array([1, -1, 1]))


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.bool_])
def test_weights_are_numbers_from_zero_on(kind: type) -> None:
    client = Client("a", X, Y, weights=np.array([0, 1, 1]).astype(kind))
    assert client.weights is not None
    assert client.weights.tolist() == [0.0, 1.0, 1.0]
    assert client.mass == 2.0
    assert Client("a", X, Y).mass == 3.0


def test_a_lazy_federation_is_told_of_weights() -> None:
    whole = world(weighted=True).federation

    def lazy(masses: object) -> Federation:
        return Federation.lazy(
            whole.ids,
            whole.client,
            sizes=whole.sizes,
            classes=whole.classes,
            masses=masses,  # type: ignore[arg-type]
        )

    assert lazy(whole.masses).weighted
    assert lazy(whole.masses)[1].weights is not None
    for told in (None, [1.0] * 5):
        with pytest.raises(DataError):
            lazy(told)[1]
    for wrong in ([1.0], [0.0] * 5, [float("nan")] * 5, ["x"] * 5):
        with pytest.raises(DataError):
            lazy(wrong)


def test_weights_tell_one_federation_from_another() -> None:
    twin = world(weighted=True)
    others = [
        pflego.Client(c.id, c.x_train, c.y_train, c.x_test, c.y_test, weights=c.weights.flip(0))  # type: ignore[union-attr]
        for c in twin.federation
    ]
    assert pflego.Federation(others).fingerprint() != twin.federation.fingerprint()
    assert world().federation.fingerprint() != twin.federation.fingerprint()
