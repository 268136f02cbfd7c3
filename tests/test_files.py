import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pflego import FolderError
from pflego.files import (
    make_folder,
    read_checked,
    read_some,
    read_tensors,
    remove_drafts,
    write_atomically,
    write_tensors,
)

TENSORS = {
    "matrix": torch.arange(6.0).reshape(2, 3),
    "number": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
    "brain": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "bytes": torch.tensor([0, 255], dtype=torch.uint8),
    "truth": torch.tensor([True, False]),
    "count": torch.tensor(7),
}


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def test_tensors_and_facts_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    said = {"round": 3, "who": "client ü\n=\0", "parts": [1.5, None, {"deep": True}]}
    write_tensors(path, TENSORS, said)
    tensors, facts = read_tensors(path)
    assert facts.facts == said
    assert tensors.keys() == TENSORS.keys()
    assert all(same(tensors[name], TENSORS[name]) for name in TENSORS)
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_comes_back_as_nothing(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {}, {})
    tensors, facts = read_tensors(tmp_path / "file")
    assert (tensors, facts.facts) == ({}, {})


def test_views_and_tensors_that_share_memory_are_written_on_their_own(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    views = {"whole": base, "row": base[0], "column": base[:, 1], "turned": base.T, "again": base}
    write_tensors(tmp_path / "file", views, {})
    tensors, _ = read_tensors(tmp_path / "file")
    assert all(same(tensors[name], views[name]) for name in views)


def test_a_change_of_any_byte_is_noticed_and_the_file_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}, {"round": 12})
    whole = path.read_bytes()
    for position in range(len(whole)):
        for mask in (0x01, 0x20, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[position] ^= mask
            path.write_bytes(damaged)
            with pytest.raises(FolderError, match="left as it is"):
                read_tensors(path)
            assert path.read_bytes() == damaged
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("old", "new"), [(b'"F32"', b'"I32"'), (b"[2,3]", b"[3,2]"), (b'"w"', b'"v"'), (b": 12", b": 21")]
)
def test_a_header_that_still_reads_but_says_something_else_is_noticed(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    path = tmp_path / "file"
    write_tensors(path, {"w": torch.ones(2, 3)}, {"round": 12})
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(FolderError, match="does not match its digest"):
        read_tensors(path)


@pytest.mark.parametrize("length", [0, 1, 8, 100, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "file"
    write_tensors(path, TENSORS, {})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FolderError, match="is damaged and was left as it is"):
        read_tensors(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "pflego 1"}], ids=str)
def test_what_others_wrote_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "file"
    save_file({"w": torch.zeros(2)}, path, metadata=metadata)
    with pytest.raises(FolderError, match="not written by this version of pflego"):
        read_tensors(path)


def test_a_file_without_a_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file({"w": torch.zeros(2)}, path, metadata={"format": "pflego 2"})
    with pytest.raises(FolderError, match="does not match its digest"):
        read_tensors(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="absent"):
        read_tensors(tmp_path / "absent")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old and long")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_no_draft_behind(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(FolderError, match=r"cannot write .*taken: Is a directory"):
        write_atomically(path, b"content")
    assert list(tmp_path.iterdir()) == [path]
    assert list(path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent/file", "No such file or directory"),
        ("taken/file", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
    ids=["no folder", "a file for a folder", "long name"],
)
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(FolderError, match=f"cannot write .*{name}: {reason}"):
        write_atomically(tmp_path / name, b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_file_is_known_by_the_digest_that_writing_it_gave(tmp_path: Path) -> None:
    first = write_tensors(tmp_path / "a", TENSORS, {"round": 1})
    assert read_checked(tmp_path / "a").digest == first
    assert write_tensors(tmp_path / "b", TENSORS, {"round": 1}) == first
    assert write_tensors(tmp_path / "b", TENSORS, {"round": 2}) != first


def test_some_tensors_are_read_by_their_names(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"x/w": torch.ones(2), "x/b": torch.zeros(1), "y/w": torch.ones(3)}, {})
    some = read_some(tmp_path / "a", lambda name: name.startswith("x/"))
    assert {name: tensor.tolist() for name, tensor in some.items()} == {"x/w": [1, 1], "x/b": [0]}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_private_is_for_its_owner_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "keep" / "own", private=True)
    write_atomically(tmp_path / "keep" / "own" / "key", b"secret", private=True)
    write_tensors(tmp_path / "keep" / "own" / "state", {}, {}, private=True)
    assert mode(tmp_path / "keep" / "own") == 0o700
    assert mode(tmp_path / "keep" / "own" / "key") == mode(tmp_path / "keep" / "own" / "state") == 0o600
    (tmp_path / "other").write_bytes(b"")
    write_atomically(tmp_path / "open", b"")
    assert mode(tmp_path / "open") == mode(tmp_path / "other")  # as any other file of this user's


def test_what_a_killed_process_left_half_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"whole")
    for name in (".file.0123456789abcdef.part", "own.part", ".hidden"):
        (tmp_path / name).write_bytes(b"half")
    remove_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "file", "own.part"]
    remove_drafts(tmp_path / "absent")


@pytest.mark.parametrize("path", [Path(), Path("/"), Path("..")])
def test_what_has_no_name_cannot_be_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FolderError, match="cannot write"):
        write_atomically(path, b"x")
    assert list(tmp_path.iterdir()) == []
