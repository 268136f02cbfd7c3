"""Data sets of Hugging Face's library."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import pflego
from pflego import UserError
from pflego.data.problems import DataProblems
from tests.support.extras import later

datasets = later("datasets", reason="the library datasets is not installed")


def table(rows: int = 12) -> Any:
    return datasets.Dataset.from_dict(
        {
            "age": [float(k) for k in range(rows)],
            "scan": [[k, 2.0 * k] for k in range(rows)],
            "ward": [["b", "a"][k % 2] for k in range(rows)],
            "label": [k % 3 for k in range(rows)],
            "site": [["x", "y"][k // (rows // 2)] for k in range(rows)],
        },
        features=datasets.Features(
            {
                "age": datasets.Value("float32"),
                "scan": datasets.Sequence(datasets.Value("float32")),
                "ward": datasets.Value("string"),
                "label": datasets.ClassLabel(names=["well", "ill", "dead"]),
                "site": datasets.Value("string"),
            }
        ),
    )


def test_columns_become_inputs_and_the_names_of_classes_keep_their_order() -> None:
    federation = pflego.load(table(), column="site", test_share=0, scale=False)
    assert list(federation.ids) == ["x", "y"]
    assert federation.schema is not None
    assert federation.schema.class_names == ("well", "ill", "dead")
    assert federation[1].y_train.tolist() == [0, 1, 2, 0, 1, 2]
    assert federation[1].x_train.tolist() == [[k, k, 2 * k, k % 2, 1 - k % 2] for k in range(6, 12)]
    assert "data" not in federation.source


def test_rows_are_those_of_a_data_set_that_was_selected_and_shuffled() -> None:
    chosen = table().shuffle(seed=1).select(range(7))
    federation = pflego.load(chosen, column="site", test_share=0, scale=False)
    ages = torch.cat([client.x_train[:, 0] for client in federation]).tolist()
    assert sorted(ages) == sorted(chosen["age"])


def test_parts_called_train_and_test_are_taken_as_such() -> None:
    parts = datasets.DatasetDict({"train": table(), "test": table(6)})
    for data in (parts, dict(parts)):
        federation = pflego.load(data, column="site", drop=["scan"])
        assert [len(client.x_train) for client in federation] == [6, 6]
        assert [len(client.x_test) for client in federation] == [3, 3]
    assert pflego.load(datasets.DatasetDict({"train": table()}), column="site").source["test_share"] == 0.2


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (["train", "validation", "test"], "has validation beside train and test"),
        (["en", "de"], "has the parts en, de: give one, or {'train': ..., 'test': ...}"),
    ],
)
def test_other_parts_are_refused(parts: list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        pflego.load(datasets.DatasetDict({part: table() for part in parts}), column="site")


def test_pictures_are_decoded() -> None:
    pixels = [np.full((3, 4), 10 * k, np.uint8) for k in range(6)]
    data = datasets.Dataset.from_dict(
        {
            "image": [Image.fromarray(own) for own in pixels],
            "label": ["cat", "dog"] * 3,
            "who": ["a", "b", "b"] * 2,
        },
    ).cast_column("image", datasets.Image())
    federation = pflego.load(data, column="who", test_share=0)
    assert federation.schema is not None
    assert (federation.schema.kind, federation.schema.shape) == ("images", (3, 4))
    assert federation.client("b").x_train[:, 0, 0].tolist() == [10, 20, 40, 50]
    assert federation.client("b").x_train.dtype == torch.uint8
    assert pflego.load(data, column="who", size=2)[0].x_train.shape[1:] == (2, 2)


def test_beside_a_picture_there_is_no_other_input() -> None:
    data = datasets.Dataset.from_dict(
        {
            "image": [Image.new("L", (2, 2))] * 4,
            "label": [0, 1] * 2,
            "who": list("aabb"),
            "age": [1, 2, 3, 4],
        },
    ).cast_column("image", datasets.Image())
    with pytest.raises(DataProblems, match=r"beside the picture 'image' .* drop=\['age'\]"):
        pflego.load(data, column="who")
    assert pflego.load(data, column="who", drop=["age"]).samples == 4


def test_a_label_without_a_name_is_missing() -> None:
    data = table().map(lambda row, k: {"label": -1 if k == 4 else row["label"]}, with_indices=True)
    with pytest.raises(
        DataProblems, match=r"values are missing, 1 in 'label' \(first: the data set, row 5\)"
    ):
        pflego.load(data, column="site")


def test_what_is_asked_for_wrongly_is_refused() -> None:
    with pytest.raises(UserError, match="the data set has no column 'nose' to drop; it has 'age', 'scan'"):
        pflego.load(table(), column="site", drop=["nose"])
    with pytest.raises(UserError, match="nothing says whose a sample is"):
        pflego.load(table())
    with pytest.raises(UserError, match="ids is nothing for a data set"):
        pflego.load(table(), ids=[1])
    with pytest.raises(UserError, match="not IterableDataset"):
        pflego.load(table().to_iterable_dataset(), column="site")
