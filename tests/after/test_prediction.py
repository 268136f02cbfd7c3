from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.after.prediction import judged_on, of_clients, predict
from pflego.data.schema import Samples, Schema
from pflego.learning.model import PersonalModel
from tests.support.reference import world

X = np.array([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [0.0, 0.0, 5.0]])


def scores(classes: list[int]) -> PersonalModel:
    """Its outputs are its inputs."""
    return PersonalModel(nn.Identity(), nn.Identity(), torch.tensor(classes, dtype=torch.long), lambda x: x)


def schema(task: str = "classification", **facts: object) -> Schema:
    return Schema("arrays", (3,), "float64", task, **facts)  # type: ignore[arg-type]


def test_classes_have_names_and_probabilities() -> None:
    named = schema(class_names=("ape", "bee", "cow", "dog"))
    samples = Samples(X, np.array([0, 2, 0]), None, ["a.png", "b.png", "c.png"])
    done = predict(samples, named, ["me"] * 3, lambda client_id: scores([0, 2, 3]))
    assert [(one.row, one.client, one.answer) for one in done.rows] == [
        ("a.png", "me", "ape"),
        ("b.png", "me", "cow"),
        ("c.png", "me", "dog"),
    ]
    assert done.classes == ["ape", "cow", "dog"]
    e = np.exp(X[0]) / np.exp(X[0]).sum()
    assert done.rows[0].probabilities == pytest.approx(dict(zip(["ape", "cow", "dog"], e, strict=True)))
    assert done.score is not None
    assert done.score.value(done.task) == pytest.approx(2 / 3)


def test_an_output_of_no_class_is_no_answer_and_takes_its_probability() -> None:
    done = predict(
        Samples(X, np.array([4, 5, 4]), None, [1, 2, 3]), schema(), [0] * 3, lambda client_id: scores([4, 5])
    )
    assert [one.answer for one in done.rows] == ["4", "5", None]
    assert sum(done.rows[2].probabilities.values()) == pytest.approx(2 / (2 + np.exp(5)))
    assert done.score is not None
    assert done.score.score == 2


def test_a_class_that_nobody_trained_on_counts_as_an_error() -> None:
    done = predict(
        Samples(X, np.array([9, 1, 2]), None, [1, 2, 3]),
        schema(),
        [0] * 3,
        lambda client_id: scores([0, 1, 2]),
    )
    assert done.score is not None
    assert done.score.score == 2


def test_owners_take_turns_and_rows_keep_their_order() -> None:
    models = {"a": scores([0, 1, 2]), "b": scores([2, 1, 0])}
    done = predict(
        Samples(X, None, None, [1, 2, 3]), schema(), ["b", "a", "b"], lambda client_id: models[str(client_id)]
    )
    assert [(one.client, one.answer) for one in done.rows] == [("b", "2"), ("a", "1"), ("b", "0")]
    assert done.score is None


def test_numbers_are_in_the_labels_own_unit() -> None:
    scaled = schema("regression", label_mean=100.0, label_scale=10.0)
    y = (np.array([[130.0, 100, 110], [100, 130, 110], [100, 100, 150]]) - 100) / 10
    done = predict(Samples(X, y, None, [1, 2, 3]), scaled, [0] * 3, lambda client_id: scores([]))
    assert [one.answer for one in done.rows] == [
        [120.0, 100.0, 110.0],
        [100.0, 130.0, 110.0],
        [100.0, 100.0, 150.0],
    ]
    assert done.rows[0].probabilities == {}
    assert done.score is not None
    assert done.score.value(done.task) == pytest.approx(np.sqrt(10**2 / 9))  # one of nine is 10 off


def test_a_run_is_judged_on_new_samples_by_their_owners_models() -> None:
    twin = world()
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=3), rounds=2)
    own = [twin.federation.client(client_id) for client_id in ("c3", "c1")]
    samples = Samples(
        np.concatenate([client.x_test for client in own]),
        np.concatenate([client.y_test for client in own]),
        None,
        [],
    )
    there = judged_on(run, samples, ["c3"] * 4 + ["c1"] * 4)
    whole = run.evaluate()
    assert there.evaluate() == [whole[3], whole[1]]
    assert there.evaluate(adapt=True) == [run.evaluate(adapt=True)[i] for i in (3, 1)]
    assert of_clients(run, ["c2"]).evaluate() == [whole[2]]
    with pytest.raises(pflego.UserError, match="without labels"):
        judged_on(run, Samples(X, None, None, []), ["c1"] * 3)
