from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pflego import UserError
from pflego.data.own.images import common_shape, decode, parse_size
from pflego.data.problems import DataWarning

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
COLOUR = np.stack([GREY, GREY[::-1], GREY[:, ::-1]], axis=-1)


def saved(path: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path)
    return path


def test_pictures_are_read_as_they_are(tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{k}.{end}", np.roll(GREY, k)) for k, end in enumerate(["png", "bmp", "tif"])]
    assert common_shape(paths, paths) == (3, 4)
    np.testing.assert_array_equal(decode(paths, paths, (3, 4)), [np.roll(GREY, k) for k in range(3)])


def test_one_in_colours_makes_all_of_them_so(tmp_path: Path) -> None:
    paths = [saved(tmp_path / "a.png", GREY), saved(tmp_path / "b.png", COLOUR)]
    assert common_shape(paths, paths) == (3, 4, 3)
    pixels = decode(paths, paths, (3, 4, 3))
    np.testing.assert_array_equal(pixels, [np.stack([GREY] * 3, axis=-1), COLOUR])


def test_pictures_may_be_bytes() -> None:
    content = BytesIO()
    Image.fromarray(GREY).save(content, "png")
    np.testing.assert_array_equal(decode([content.getvalue()], ["row 1"], (3, 4)), [GREY])


def test_sizes_that_differ_are_refused_unless_one_is_named(tmp_path: Path) -> None:
    paths = [saved(tmp_path / "a.png", GREY), saved(tmp_path / "b.png", np.full((6, 6), 90, np.uint8))]
    with pytest.raises(UserError, match=r"a.png is 4x3 pixels, but .*b.png 6x6: .*size='4x3'"):
        common_shape(paths, paths)
    assert common_shape(paths, paths, parse_size("2x5")) == (5, 2)
    pixels = decode(paths, paths, (5, 2))
    assert pixels.shape == (2, 5, 2)
    assert (pixels[1] == 90).all()


@pytest.mark.parametrize("size", [0, "a", "3x", "1x2x3", -4, 2.5])
def test_a_size_is_one_number_or_two(size: object) -> None:
    with pytest.raises(UserError, match="size must be a number of pixels"):
        parse_size(size)  # type: ignore[arg-type]


def test_more_than_eight_bits_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", GREY.astype(np.uint16) * 256)
    with pytest.raises(UserError, match=r"a.png has more than 8 bits a pixel \(mode I;16\)"):
        common_shape([path], [path])


def test_transparent_parts_earn_a_warning(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", COLOUR, "RGBA")
    with pytest.warns(DataWarning, match="1 of 1 pictures have transparent parts"):
        assert common_shape([path], [path]) == (3, 4, 3)


def test_what_is_no_picture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"cannot read .*a.png"):
        common_shape([path], [path])
    half = saved(tmp_path / "b.png", np.random.default_rng(0).integers(0, 255, (50, 50), dtype=np.uint8))
    half.write_bytes(half.read_bytes()[:600])
    with pytest.raises(UserError, match=r"cannot read .*b.png"):
        decode([half], [half], (50, 50))


def test_sizes_that_no_memory_holds_are_refused() -> None:
    with pytest.raises(UserError, match="at most 10000 pixels"):
        parse_size(100000)
    with pytest.raises(UserError, match="smaller size"):
        decode([Path("none.png")] * 10**6, ["none"] * 10**6, (10**5, 10**5, 3))
