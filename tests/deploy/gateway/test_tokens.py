"""Tokens: given once, known by their digests alone, and taken back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from filelock import FileLock

from pflego.deploy.gateway import tokens
from pflego.errors import FolderError, SettingError


def test_a_token_is_kept_as_a_digest_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = tokens.give(file, "ann")
    assert len(token) >= 43  # 256 bits
    assert token not in file.read_text()
    assert tokens.read(file) == {"ann": sha256(token.encode()).hexdigest()}
    assert file.stat().st_mode & 0o077 == 0
    assert tokens.whose(tokens.read(file), token) == "ann"


def test_everybody_has_a_token_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    given = {name: tokens.give(file, name) for name in ("ann", "bob", "ward 3")}
    assert len({*given.values()}) == 3
    for name, token in given.items():
        assert tokens.whose(tokens.read(file), token) == name
    with pytest.raises(SettingError):
        tokens.give(file, "ann")


def test_a_token_that_was_taken_back_is_nobodys(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    first = tokens.give(file, "ann")
    tokens.revoke(file, "ann")
    assert tokens.whose(tokens.read(file), first) is None
    assert tokens.give(file, "ann") != first
    with pytest.raises(SettingError):
        tokens.revoke(file, "bob")


def test_tokens_given_and_taken_back_at_the_same_moment_are_all_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read = tmp_path / "tokens.json", tokens.read
    tokens.give(file, "zoe")

    def slowly(path: Path) -> Mapping[str, str]:
        known = read(path)
        time.sleep(0.1)  # in which others could write
        return known

    monkeypatch.setattr(tokens, "read", slowly)
    with ThreadPoolExecutor() as at_once:
        given = {name: at_once.submit(tokens.give, file, name) for name in ("ann", "bob")}
        taken = at_once.submit(tokens.revoke, file, "zoe")
    taken.result()
    assert read(file) == {name: tokens.digest(token.result()) for name, token in given.items()}
    assert [path.stat().st_mode & 0o077 for path in tmp_path.iterdir()] == [0, 0]  # the file, and its lock


def test_a_file_that_somebody_holds_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens.json"
    tokens.give(file, "ann")
    monkeypatch.setattr(tokens, "_OTHERS", 0.1)
    with FileLock(tmp_path / ".tokens.json.lock"), pytest.raises(FolderError, match="another process"):
        tokens.revoke(file, "ann")
    tokens.revoke(file, "ann")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 81])
def test_a_name_that_cannot_be_a_clients_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError):
        tokens.give(tmp_path / "tokens.json", name)


@pytest.mark.parametrize("content", ["", "[]", '{"ann": 3}', '{"ann": "ü"}', '{"ann": ""}', "\0"])
def test_a_damaged_file_lets_nobody_in(content: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(content)
    with pytest.raises(FolderError):
        tokens.read(file)
    with pytest.raises(FolderError):
        tokens.read(tmp_path / "none.json")
