from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

import pflego
from pflego import UserError
from pflego.data.dataset import Preparation
from pflego.data.sets import data_set
from pflego.data.sets.omniglot import shrink
from tests.support.official import omniglot_drawings, write_omniglot, write_packed

CHARACTERS = 6  # two in each of three alphabets


def write_npz(folder: Path, drawings: int = 4) -> Path:
    write_packed(folder / "omniglot.npz", omniglot_drawings(drawings))
    return folder


WRITERS: dict[str, Callable[[Path], object]] = {
    "npz": write_npz,
    "folders": lambda folder: write_omniglot(folder, omniglot_drawings(), zipped=False),
    "zips": lambda folder: write_omniglot(folder, omniglot_drawings(), zipped=True),
    "own folder": lambda folder: write_omniglot(folder / "omniglot", omniglot_drawings(), zipped=True),
    "torchvision": lambda folder: write_omniglot(folder / "omniglot-py", omniglot_drawings(), zipped=False),
}


def small(ink: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Image.Image:
    """The usual way: ink bright, resized by Pillow."""
    return Image.fromarray(ink * np.uint8(255)).resize((28, 28), Image.Resampling.BOX)


@pytest.mark.parametrize("density", [0, 0.05, 0.5, 1])
def test_drawings_are_shrunk_as_pillow_does_it(density: float) -> None:
    ink = np.random.default_rng(1).random((40, 105, 105)) < density
    wanted = np.stack([np.asarray(small(one)) for one in ink])
    assert np.array_equal(shrink(np.packbits(ink, axis=-1)), wanted)


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_gives_the_same_images_inverted_resized_and_rotated(tmp_path: Path, form: str) -> None:
    WRITERS[form](tmp_path)
    found = data_set("omniglot", data_dir=tmp_path)
    pictures = np.concatenate([found.x_train, found.x_test])
    numbers = np.concatenate([found.y_train, found.y_test])
    whose = np.concatenate([found.columns["alphabet"][part] for part in (0, 1)])
    wanted = {
        (np.rot90(np.asarray(small(ink)), k).tobytes(), int(name[-11:-7]) - 1, name.split("/")[1])
        for (name, ink), k in product(omniglot_drawings().items(), range(4))
    }
    there = {(p.tobytes(), int(n), str(w)) for p, n, w in zip(pictures, numbers, whose, strict=True)}
    assert there == wanted
    assert len(pictures) == len(wanted) == CHARACTERS * 4 * 4


@pytest.mark.parametrize("split", ["drawing", "paper"])
@pytest.mark.parametrize("rotations", [1, 2, 4])
def test_a_quarter_of_every_character_is_for_testing(
    tmp_path: Path, split: Literal["drawing", "paper"], rotations: int
) -> None:
    federation = pflego.load(
        "omniglot", data_dir=write_npz(tmp_path, drawings=20), split=split, rotations=rotations, seed=3
    )
    for client in federation:
        for number in client.classes.tolist():
            assert (client.y_train == number).sum() == 15 * rotations
            assert (client.y_test == number).sum() == 5 * rotations


def leaks(folder: Path, split: str) -> int:
    """Test images that are a rotation of a training image."""
    found = data_set("omniglot", data_dir=folder, wanted=Preparation(split=split))

    def turned(image: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
        return min(np.rot90(image, k).tobytes() for k in range(4))

    seen = {turned(image) for image in found.x_train}
    return sum(turned(image) in seen for image in found.x_test)


def test_no_drawing_is_on_both_sides_but_in_the_papers_split(tmp_path: Path) -> None:
    folder = write_npz(tmp_path, drawings=20)
    assert leaks(folder, "drawing") == 0
    assert leaks(folder, "paper") > CHARACTERS * 20 * 0.8  # each has three others, on one of 60 of 80 places


def test_an_alphabet_is_a_client_and_no_two_share_a_class(tmp_path: Path) -> None:
    federation = pflego.load("omniglot", data_dir=write_npz(tmp_path))
    assert list(federation.ids) == ["Angelic", "Greek", "Latin"]
    assert federation.classes == list(range(CHARACTERS))
    assert [client.classes.tolist() for client in federation] == [[4, 5], [0, 1], [2, 3]]
    assert federation[0].x_train.shape[1:] == (28, 28)
    assert str(federation[0].x_train.dtype) == "torch.uint8"


def test_the_seed_decides_what_is_set_aside(tmp_path: Path) -> None:
    load = partial(pflego.load, "omniglot", data_dir=write_npz(tmp_path, drawings=20))
    assert load(seed=1).fingerprint() == load(seed=1).fingerprint() != load(seed=2).fingerprint()


def test_how_it_was_prepared_is_on_record(tmp_path: Path) -> None:
    folder = write_npz(tmp_path)
    made = pflego.load("omniglot", data_dir=folder, split="paper", seed=5).source
    assert made == {
        "data": "omniglot",
        "clients": 3,
        "split": "paper",
        "rotations": 4,
        "data_seed": 5,
        "data_dir": str(folder),
    }
    again = {key: value for key, value in made.items() if key not in ("data", "data_seed")}
    assert pflego.load("omniglot", seed=5, **again).source == made  # type: ignore[arg-type]


def test_a_file_is_read_by_its_path_too(tmp_path: Path) -> None:
    write_packed(tmp_path / "drawings.npz", omniglot_drawings())
    assert len(pflego.load(tmp_path / "drawings.npz")) == 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"clients": 20}, "omniglot has 3 clients, one for each alphabet: leave clients out, or say 3"),
        ({"classes_per_client": 2}, "omniglot is divided by alphabet: leave it out"),
        ({"split": "papr"}, "unknown split 'papr': did you mean 'paper'"),
        ({"rotations": 5}, "rotations must be a whole number at least 1 and at most 4"),
        ({"rotations": True}, "rotations must be a whole number"),
        ({"rotations": 0}, "rotations must be a whole number at least 1"),
    ],
)
def test_what_does_not_apply_is_refused(tmp_path: Path, settings: dict[str, int], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        pflego.load("omniglot", data_dir=write_npz(tmp_path), **settings)  # type: ignore[arg-type]


def test_other_sets_are_not_rotated() -> None:
    with pytest.raises(UserError, match="split does not apply to digits: leave it out"):
        pflego.load("digits", split="paper")
    with pytest.raises(UserError, match="rotations does not apply to diabetes: leave it out"):
        pflego.load("diabetes", rotations=4)


def test_one_of_the_two_parts_is_not_enough(tmp_path: Path) -> None:
    write_omniglot(tmp_path, omniglot_drawings(), zipped=True)
    (tmp_path / "images_evaluation.zip").unlink()
    with pytest.raises(
        UserError, match=r"Put images_background\.zip and images_evaluation\.zip, or omniglot\.npz"
    ):
        data_set("omniglot", data_dir=tmp_path)


def test_an_empty_part_is_named(tmp_path: Path) -> None:
    for part in ("images_background", "images_evaluation"):
        (tmp_path / part).mkdir()
    with pytest.raises(UserError, match=r"images_background has no drawings"):
        data_set("omniglot", data_dir=tmp_path)


def test_an_image_of_another_size_is_named(tmp_path: Path) -> None:
    write_omniglot(tmp_path, omniglot_drawings(), zipped=False)
    file = tmp_path / "images_background/Greek/character01/0001_02.png"
    Image.new("1", (28, 28)).save(file)
    with pytest.raises(UserError, match=r"0001_02\.png: it has 28x28 pixels, a drawing has 105x105"):
        data_set("omniglot", data_dir=tmp_path)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    write_omniglot(tmp_path, omniglot_drawings(), zipped=False)
    (tmp_path / "images_background/Greek/character01/0001_02.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"cannot read .*0001_02\.png"):
        data_set("omniglot", data_dir=tmp_path)


def test_images_that_are_not_packed_are_refused(tmp_path: Path) -> None:
    zeros = np.zeros(2, np.uint8)
    np.savez(
        tmp_path / "omniglot.npz",
        images=np.zeros((2, 105, 105), np.uint8),
        alphabet=zeros,
        character=zeros,
        alphabet_names=np.array(["a"]),
    )
    with pytest.raises(UserError, match=r"omniglot\.npz: images are uint8 of shape \(2, 105, 105\)"):
        data_set("omniglot", data_dir=tmp_path)
