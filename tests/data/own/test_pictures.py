"""Pictures in folders client/class."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pflego
from pflego import UserError


def paint(root: Path, place: str, value: int, size: tuple[int, int] = (5, 4)) -> None:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(size, value, np.uint8)).save(path)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A picture's grey level is 10 for a client, 1 a picture."""
    for number, client in enumerate(["berlin", "wien"], start=1):
        for place, kind in enumerate(["cat", "dog", "eel"][: number + 1]):
            for k in range(5):
                paint(tmp_path, f"{client}/{kind}/{k}.png", 100 * number + 10 * place + k)
    return tmp_path


def test_folders_name_clients_and_classes(zoo: Path) -> None:
    federation = pflego.load(zoo, test_share=0.2)
    assert list(federation.ids) == ["berlin", "wien"]
    assert federation.schema is not None
    assert federation.schema.class_names == ("cat", "dog", "eel")
    assert (federation.schema.kind, federation.schema.shape) == ("images", (5, 4))
    for number, client in enumerate(federation, start=1):
        assert client.x_train.dtype == torch.uint8
        assert client.x_test.shape == (number + 1, 5, 4)
        for x, y in [(client.x_train, client.y_train), (client.x_test, client.y_test)]:
            assert (x == x[:, :1, :1]).all()
            assert (x[:, 0, 0] // 10).tolist() == (10 * number + y).tolist()
    assert federation.source == {
        "data": str(zoo), "clients": 2, "data_seed": 0, "test_share": 0.2,
    }  # fmt: skip


def test_a_level_of_train_and_test_decides(tmp_path: Path) -> None:
    paint(tmp_path, "train/a/cat/1.png", 1)
    paint(tmp_path, "train/a/dog/2.png", 2)
    paint(tmp_path, "test/a/dog/3.png", 3)
    federation = pflego.load(tmp_path)
    assert federation[0].x_test[:, 0, 0].tolist() == [3]
    assert federation[0].x_train[:, 0, 0].tolist() == [1, 2]
    paint(tmp_path, "test/b/dog/3.png", 3)
    with pytest.raises(UserError, match="client 'b' has no picture to train on"):
        pflego.load(tmp_path)


def test_sizes_can_be_made_the_same(zoo: Path) -> None:
    paint(zoo, "wien/eel/9.png", 100, (9, 9))
    with pytest.raises(UserError, match=r"wien/eel/9.png 9x9: say a size for all, such as size='4x5'"):
        pflego.load(zoo)
    federation = pflego.load(zoo, size="3x2")
    assert federation[0].x_train.shape[1:] == (2, 3)
    assert federation.source["size"] == "3x2"


def test_classes_alone_can_be_divided_among_clients(zoo: Path) -> None:
    with pytest.raises(UserError, match="wien: nothing says whose a sample is"):
        pflego.load(zoo / "wien")
    federation = pflego.load(zoo / "wien", clients=3, classes_per_client=1)
    assert [len(client.classes) for client in federation] == [1, 1, 1]
    assert federation.schema is not None
    assert federation.schema.class_names == ("cat", "dog", "eel")


def test_a_picture_must_lie_in_folders(zoo: Path) -> None:
    paint(zoo, "lone.png", 1)
    with pytest.raises(UserError, match=r"lone.png does not lie in a folder client/class"):
        pflego.load(zoo)


def test_options_of_tables_are_refused(zoo: Path) -> None:
    with pytest.raises(UserError, match=r"label is for tables, and .* holds pictures: leave it out"):
        pflego.load(zoo, label="kind")
    with pytest.raises(UserError, match="column is nothing for"):
        pflego.load(zoo, column="kind")


def test_a_site_of_its_own_reads_as_all_do(zoo: Path) -> None:
    schema = pflego.load(zoo, size=3).schema
    (zoo / "berlin").rename(zoo / "else")
    federation = pflego.load(zoo, schema=schema, test_share=0)
    assert federation.client("else").x_train.shape == (10, 3, 3)
    paint(zoo, "else/fox/1.png", 1)
    with pytest.raises(UserError, match=r"fox/1.png: 'fox' is no class of the schema; it has cat, dog, eel"):
        pflego.load(zoo, schema=schema)
