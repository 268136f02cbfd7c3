from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pflego
from pflego import Client, Federation, UserError
from pflego.report.holdings import draw, examples, holdings


def images(shape: tuple[int, ...], classes: int = 3, clients: int = 4) -> Federation:
    """Clients that hold class c in the first pixel, once more for every class."""
    x = np.zeros((2 * classes, *shape), np.uint8)
    y = np.arange(2 * classes) % classes
    x.reshape(len(x), -1)[:, 0] = y
    return Federation([Client(f"client_{k}", x, y, x[:k], y[:k]) for k in range(clients)])


def test_who_holds_what_is_counted() -> None:
    x = np.zeros((5, 2))
    federation = Federation(
        [
            Client("a", x, np.array([7, 7, 7, 3, 3]), x[:2], np.array([7, 3])),
            Client("b", x[:1], np.array([5])),
        ]
    )
    held = holdings(federation)
    assert held.train.tolist() == [[2, 0, 3], [0, 1, 0]]
    assert held.test.tolist() == [2, 0]
    assert held.classes == ["3", "5", "7"]
    assert holdings(federation, "abcdefgh").classes == ["d", "f", "h"]


def test_a_regression_is_counted_in_bins() -> None:
    held = holdings(pflego.load("diabetes", clients=4))
    assert held.train.shape == (4, 10)
    assert held.train.sum() == 354


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3)])
def test_every_class_has_examples_of_its_own(shape: tuple[int, ...]) -> None:
    rows = examples(images(shape))
    assert len(rows) == 3
    for number, row in enumerate(rows):
        assert all(image.shape == (4, 6, 3) for image in row)
        ink = number / 255
        assert all(image[0, 0, 0] == pytest.approx(ink if shape[-1] == 3 else 1 - ink) for image in row)


def test_of_very_many_classes_some_have_examples() -> None:
    assert len(examples(images((2, 2), classes=200, clients=1))) == 28


@pytest.mark.parametrize("shape", [(5,), (2, 2, 2, 2), (3, 4, 6)])
def test_what_is_no_image_has_no_examples(shape: tuple[int, ...]) -> None:
    assert examples(images(shape)) == []


@pytest.mark.parametrize(
    ("federation", "picture"),
    [
        (pflego.load("digits", clients=3, classes_per_client=5), (8, 8)),
        (pflego.load("diabetes", clients=2), ()),
        (images((4, 6, 3), clients=1), ()),
        (images((4, 4), classes=100, clients=150), ()),
        (Federation([Client(0, np.zeros((1, 2)), np.array([0]))]), ()),
    ],
    ids=["digits", "diabetes", "colours", "many", "one sample"],
)
def test_any_federation_can_be_drawn(
    tmp_path: Path, federation: Federation, picture: tuple[int, ...]
) -> None:
    path = draw(federation, tmp_path / "new" / "picture.png", title="who holds what", picture=picture)
    with Image.open(path) as image:
        assert min(image.size) > 300


@pytest.mark.parametrize("ending", [".svg", ".pdf"])
def test_the_ending_says_the_format(tmp_path: Path, ending: str) -> None:
    content = draw(images((4, 4)), tmp_path / f"p{ending}", title="t").read_bytes()
    assert content.startswith(b"%PDF" if ending == ".pdf" else b"<?xml")


def test_a_format_that_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"its name must end in \.png, \.svg, \.pdf"):
        draw(images((4, 4)), tmp_path / "picture.txt", title="t")


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'pflego\[plots\]'"):
        draw(images((4, 4)), tmp_path / "picture.png", title="t")
