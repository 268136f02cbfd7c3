import gzip
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from pflego import FolderError, UserError
from pflego.data.sets import data_set, find, get
from pflego.data.sets.catalogue import CATALOGUE, Entry
from pflego.data.sets.download import _CHUNK as CHUNK
from pflego.data.sets.download import Remote, fetch
from tests.support.file_server import Server, serving
from tests.support.official import MNIST, idx, labels, pictures

CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        server.files["/big"] = CONTENT
        yield server


def remote(*urls: str, content: bytes = CONTENT, name: str = "big") -> Remote:
    return Remote(name, urls, len(content), sha256(content).hexdigest())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_whole_and_alone(server: Server, tmp_path: Path) -> None:
    fetch([remote(f"{server.url}big")], tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder" / "big").read_bytes() == CONTENT
    assert names(tmp_path / "new" / "folder") == ["big"]


def test_what_is_there_and_right_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(CONTENT)
    fetch([remote(f"{server.url}big")], tmp_path)
    assert server.asked == []


def test_what_is_there_and_wrong_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"old")
    fetch([remote(f"{server.url}big")], tmp_path)
    assert (tmp_path / "big").read_bytes() == CONTENT


def test_a_transfer_that_breaks_off_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    server.breaks = [5 * CHUNK, 3 * CHUNK + 5]
    fetch([remote(f"{server.url}big")], tmp_path)
    assert (tmp_path / "big").read_bytes() == CONTENT
    assert server.asked == [("/big", None), ("/big", f"bytes={5 * CHUNK}-"), ("/big", f"bytes={8 * CHUNK}-")]
    assert names(tmp_path) == ["big"]


def test_a_transfer_that_fails_goes_on_next_time(server: Server, tmp_path: Path) -> None:
    server.breaks = [5 * CHUNK, 0]
    with pytest.raises(UserError, match=r"the transfer from 127.* broke off"):
        fetch([remote(f"{server.url}big")], tmp_path)
    assert names(tmp_path) == ["big.part"]
    assert (tmp_path / "big.part").read_bytes() == CONTENT[: 5 * CHUNK]
    fetch([remote(f"{server.url}big")], tmp_path)
    assert server.asked[-1] == ("/big", f"bytes={5 * CHUNK}-")
    assert (tmp_path / "big").read_bytes() == CONTENT


def test_a_server_that_cannot_go_on_begins_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "big.part").write_bytes(CONTENT[:1000])
    fetch([remote(f"{server.url}big")], tmp_path)
    assert (tmp_path / "big").read_bytes() == CONTENT


def test_a_server_that_never_gets_further_is_given_up(server: Server, tmp_path: Path) -> None:
    server.ranges, server.breaks = False, [100_000] * 10
    with pytest.raises(UserError, match=r"the transfer from 127.* broke off"):
        fetch([remote(f"{server.url}big")], tmp_path)
    assert len(server.asked) == 2


@pytest.mark.parametrize("part", [b"other" * 1000, b"other" * 100_000], ids=["shorter", "longer"])
def test_a_part_of_something_else_is_dropped(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "big.part").write_bytes(part)
    fetch([remote(f"{server.url}big")], tmp_path)
    assert (tmp_path / "big").read_bytes() == CONTENT
    assert names(tmp_path) == ["big"]


def test_a_part_beyond_the_servers_end_is_dropped(server: Server, tmp_path: Path) -> None:
    server.files["/short"] = b"short"
    (tmp_path / "big.part").write_bytes(b"more than that")
    with pytest.raises(UserError, match="answers 416"):
        fetch([remote(f"{server.url}short")], tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("breaks", [[], [CHUNK], [CHUNK, 10**6, CHUNK]])
def test_a_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path, breaks: list[int]) -> None:
    server.breaks = breaks
    server.files["/big"] = bytes(len(CONTENT))
    with pytest.raises(UserError, match="big has another checksum than the published file"):
        fetch([remote(f"{server.url}big")], tmp_path)
    assert names(tmp_path) == []


def test_an_address_that_fails_is_followed_by_the_next(server: Server, tmp_path: Path) -> None:
    server.files["/bad"] = b"<html>" * 50_000
    fetch([remote(f"{server.url}absent", f"{server.url}bad", f"{server.url}big")], tmp_path)
    assert [path for path, _ in server.asked] == ["/absent", "/bad", "/big"]
    assert (tmp_path / "big").read_bytes() == CONTENT


def test_every_address_that_failed_is_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        fetch(
            [remote(f"{server.url}absent", "http://127.0.0.1:9/big", "http://elsewhere.test/big")], tmp_path
        )
    assert str(error.value) == (
        f"{server.url}absent answers 404 Not Found; no connection to 127.0.0.1:9; no connection to elsewhere.test"
    )


def test_a_folder_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"cannot write to the folder .*file"):
        fetch([remote(f"{server.url}big")], tmp_path / "file")


@pytest.fixture
def small_mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Serve an MNIST of a few images."""
    arrays = [pictures(6, 4, 5), labels(6), pictures(3, 4, 5), labels(3)]
    files = {f"{name}.gz": gzip.compress(idx(array)) for name, array in zip(MNIST, arrays, strict=True)}
    remotes = []
    for name, content in files.items():
        server.files[f"/{name}"] = content
        remotes.append(remote(f"{server.url}{name}", content=content, name=name))
    monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], remotes=remotes))
    return server


def test_a_set_that_is_nowhere_is_downloaded_once_and_kept_in_the_cache(
    small_mnist: Server, cache: Path, tmp_path: Path
) -> None:
    assert find("mnist") is None
    assert data_set("mnist", data_dir=tmp_path).x_train.shape == (6, 4, 5)
    assert len(small_mnist.asked) == 4
    assert np.array_equal(data_set("mnist").y_train, labels(6))
    assert len(small_mnist.asked) == 4
    assert get("mnist").place == cache / "mnist"
    assert list(tmp_path.iterdir()) == []


def test_a_set_that_cannot_be_had_says_which_files_to_put_where(small_mnist: Server, tmp_path: Path) -> None:
    del small_mnist.files[f"/{MNIST[2]}.gz"]
    with pytest.raises(UserError) as error:
        data_set("mnist", data_dir=tmp_path)
    files = f"{MNIST[0]}.gz, {MNIST[1]}.gz, {MNIST[2]}.gz and {MNIST[3]}.gz"
    assert str(error.value) == (
        f"cannot download mnist: {small_mnist.url}{MNIST[2]}.gz answers 404 Not Found. Put {files}, "
        f"or mnist.npz (x_train, y_train, x_test, y_test), into {tmp_path}. They are at {small_mnist.url}"
    )


@pytest.mark.parametrize("name", CATALOGUE)
def test_without_a_network_the_message_is_one_line_that_helps(name: str) -> None:
    with pytest.raises(UserError) as error:
        data_set(name)
    said = str(error.value)
    assert said.startswith(f"cannot download {name}: no connection to ")
    assert f"{name}.npz" in said
    assert CATALOGUE[name].remotes[0].name in said
    assert "--data-dir or PFLEGO_DATA" in said
    assert "\n" not in said


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.name)
def test_published_files_have_a_length_a_checksum_and_an_address(entry: Entry) -> None:
    for file in entry.remotes:
        assert file.size > 1000
        assert len(bytes.fromhex(file.sha256)) == 32
        assert all(url.startswith("http") and url.endswith(f"/{file.name}") for url in file.urls)
