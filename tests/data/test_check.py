import numpy as np
import pytest

import pflego
from pflego.data.check import Findings, encoding, examine
from pflego.data.schema import Feature, Schema

RNG = np.random.default_rng(0)


def examined(*clients: pflego.Client, schema: Schema | None = None) -> Findings:
    return examine(pflego.Federation(clients, schema=schema))


def client(name: str, y: list[int], y_test: list[int] | None = None, **arrays: np.ndarray) -> pflego.Client:
    x = arrays.get("x", RNG.normal(size=(len(y), 3)))
    tests = [] if y_test is None else y_test
    x_test = arrays.get("x_test", RNG.normal(size=(len(tests), 3)))
    return pflego.Client(name, x, np.array(y), x_test, np.array(tests, int))


def test_classes_are_counted_over_all_clients() -> None:
    schema = Schema("arrays", (3,), "float64", "classification", class_names=("cat", "dog", "eel"))
    found = examined(client("a", [0, 0, 1], [1]), client("b", [1, 1, 2, 2], [2, 2]), schema=schema)
    counts = [(one.name, one.train, one.test, one.clients) for one in found.classes]
    assert counts == [("cat", 2, 0, 1), ("dog", 3, 1, 2), ("eel", 2, 2, 1)]


def test_weights_are_summed_up_and_how_many_samples_tell_as_much() -> None:
    x, y = RNG.normal(size=(4, 3)), np.array([0, 1, 0, 1])
    a = pflego.Client("a", x, y, weights=np.array([0, 1, 1, 2]))
    found = examined(a, client("b", [0, 1]))
    # 0, 1, 1, 2, 1, 1: 6^2 / 8
    said = "training samples have weights from 0 to 2, 1 of them 0: 6 tell as much as 4.5 of equal weight"
    assert said in found.facts
    assert not any("weight" in fact for fact in examined(client("b", [0, 1])).facts)


@pytest.mark.parametrize("name", ["weight", "Sample_Weight", "sample-weights", "sampleweight", "wt"])
def test_an_input_that_is_called_like_weights_is_pointed_out(name: str) -> None:
    features = (Feature(name, "number", mean=(1.0,)), Feature("height", "number", mean=(0.0,)))
    schema = Schema("table", (2,), "float32", "classification", features=features, class_names=("0", "1"))
    two = client("a", [0, 1] * 6, x=RNG.normal(size=(12, 2)))
    [said] = [words for words in examined(two, schema=schema).warnings if "--weight" in words]
    assert said.startswith(f"{name} is taken as an input")


def test_how_alike_clients_are_is_said() -> None:
    found = examined(client("a", [0, 1, 2]), client("b", [1, 2]), client("c", [2, 3]))
    # classes 1 and 2 by a and b, 2 by a and c, 2 by b and c: four in three pairs
    assert (
        "a client has 2.33 of 4 classes on average, and 1.33 in common with another; held by one client alone: 2"
        in found.facts[-1]
    )


def test_test_samples_that_were_trained_on_are_found() -> None:
    x = RNG.normal(size=(20, 3))
    y = [0, 1] * 10
    a = client("a", y, [0, 1, 0], x=x, x_test=np.stack([x[3], x[5] + 1e-12, x[7]]))
    b = client("b", y, [0, 1], x_test=np.stack([x[0], RNG.normal(size=3)]))
    words = examined(a, b).warnings
    assert [w for w in words if "same inputs" in w] == [
        "3 of 5 test samples have the same inputs as a training sample, 2 of them as one of the same client: "
        "a model can know them by heart"
    ]


def test_clients_that_have_little_to_learn_from_are_named() -> None:
    found = examined(client("few", [0, 1]), client("alike", [0] * 12), client("odd", [0, 1] * 6, [2]))
    assert "fewer than 10 training samples: 1 client (few)" in found.warnings
    assert "one class alone, and so nothing to tell apart: 1 client (alike)" in found.warnings
    assert any("none of to train on: 1 client (odd)" in words for words in found.warnings)
    assert "for testing: what the data say; nothing of 2 clients (few, alike)" in found.facts


def test_without_any_test_samples_nothing_can_be_shown() -> None:
    assert any("there are no test samples" in words for words in examined(client("a", [0, 1] * 6)).warnings)


def test_columns_that_never_change_are_named() -> None:
    x = RNG.normal(size=(12, 4))
    x[:, 1], x[:, 2:] = 5.0, [1, 0]
    features = (
        Feature("age", "number", mean=(0.0,)),
        Feature("year", "number", mean=(0.0,)),
        Feature("ward", "category", categories=("a", "b")),
    )
    schema = Schema("table", (4,), "float64", "classification", features=features)
    found = examined(client("a", [0, 1] * 6, x=x), client("b", [0, 1] * 6, x=x + np.eye(4)[0]), schema=schema)
    assert "the same in every training sample, and so of no use: year, ward" in found.warnings
    plain = examined(client("a", [0, 1] * 6, x=x))
    assert "3 of 4 inputs are the same in every training sample" in plain.facts


@pytest.mark.parametrize(("largest", "warned"), [(5.0, False), (4000.0, True)])
def test_inputs_far_from_one_earn_a_warning(largest: float, warned: bool) -> None:
    x = RNG.normal(size=(12, 3))
    x[3, 1] = -largest
    words = examined(client("a", [0, 1] * 6, x=x)).warnings
    assert any(f"inputs reach {largest:g}" in w for w in words) == warned


def test_bytes_are_on_a_scale_already() -> None:
    x = RNG.integers(0, 255, (12, 3), dtype=np.uint8)
    found = examined(client("a", [0, 1] * 6, x=x, x_test=x[:0]))
    assert not any("reach" in words for words in found.warnings)
    assert "a sample is 3 uint8 values, taken as they are, divided by 255" in found.facts


def test_a_regression_is_described_in_the_unit_of_its_label() -> None:
    schema = Schema("table", (3,), "float64", "regression", label_mean=100, label_scale=10)
    y = np.array([-1.0, 0, 1] * 5)
    found = examined(pflego.Client("a", RNG.normal(size=(15, 3)), y), schema=schema)
    assert found.classes == []
    assert "from 90 to 110, its mean is 100, its standard deviation 8.165, and is learned" in found.facts[-1]


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (Feature("a", "number", mean=(12.5,), scale=(3.0,)), "number: (value - 12.5) / 3"),
        (Feature("a", "number", mean=(12.5,)), "number, as it is"),
        (
            Feature("a", "number", mean=(1.0, 2.0), scale=(3.0, 4.0)),
            "2 numbers, each with mean 0 and standard deviation 1",
        ),
        (Feature("a", "category", categories=("x", "y")), "category: x, y"),
        (Feature("a", "category", categories=tuple("abcdefg")), "category: a, b, c, d, e, ... (7 in all)"),
        (Feature("a", "image"), "picture"),
    ],
)
def test_how_a_column_becomes_inputs_is_said(feature: Feature, words: str) -> None:
    assert encoding(feature) == words
