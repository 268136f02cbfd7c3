from pathlib import Path

import numpy as np

from pflego.data.sets.catalogue import KNOWN
from pflego.data.sets.listing import Line, listing
from tests.support.official import MNIST, labels, pictures, write_idx


def lines(folder: Path | None = None) -> dict[str, Line]:
    return {line.name: line for line in listing(folder)}


def test_every_known_set_is_listed_with_what_it_takes_to_have_it() -> None:
    found = lines()
    assert list(found) == list(KNOWN)
    assert found["digits"] == Line("digits", 1438, 359, 10, [64], "embedded")
    assert found["emnist"] == Line("emnist", 697_932, 116_323, 62, [28, 28], "download, 562 MB")
    assert found["omniglot"].where == "download, 16 MB"


def test_a_file_says_itself_how_much_it_holds(tmp_path: Path) -> None:
    x, y = pictures(5, 3, 4), labels(5)
    np.savez_compressed(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    np.savez(tmp_path / "ours.npz", x_train=x, y_train=y / 2, x_test=x[:2], y_test=y[:2] / 2)
    np.savez(tmp_path / "other.npz", notes=x)
    (tmp_path / "broken.npz").write_bytes(b"PK")
    found = lines(tmp_path)
    assert found["mnist"] == Line("mnist", 5, 2, 3, (3, 4), str(tmp_path / "mnist.npz"))
    assert found["ours"] == Line("ours", 5, 2, 0, (3, 4), str(tmp_path / "ours.npz"))
    assert list(found) == [*KNOWN, "ours"]


def test_official_files_are_where_they_are(tmp_path: Path, cache: Path) -> None:
    arrays = [pictures(5, 3, 4), labels(5), pictures(2, 3, 4), labels(2)]
    write_idx(tmp_path / "mnist", MNIST, arrays)
    write_idx(cache / "fashion-mnist", MNIST, arrays)
    found = lines(tmp_path)
    assert found["mnist"].where == str(tmp_path / "mnist")
    assert found["fashion-mnist"].where == str(cache / "fashion-mnist")
