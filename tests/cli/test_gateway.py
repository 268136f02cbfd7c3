from __future__ import annotations

from pathlib import Path

import pytest

import pflego
from pflego.deploy.folder import write_app
from pflego.deploy.gateway import tokens
from tests.cli.test_deploy import deploy


def test_a_token_is_a_link_that_is_shown_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    shown = deploy(
        "token", "ward-3", "--tokens", file, "--address", "https://example.org/visit"
    ).stdout.strip()
    address, _, token = shown.partition("#token=")
    assert address == "https://example.org/visit/"
    assert tokens.whose(tokens.read(file), token) == "ward-3"
    with pytest.raises(pflego.SettingError):
        deploy("token", "ward-3", "--tokens", file)
    assert deploy("token", "ward-3", "--tokens", file, "--revoke").exit_code == 0
    assert tokens.whose(tokens.read(file), token) is None


@pytest.mark.parametrize(
    "address",
    [
        "http://example.org/",
        "http://127.0.0.1.example.org/",
        "http://localhost.example.org/",
        "https://",
        "x",
        "http://[",
    ],
)
def test_a_token_does_not_travel_in_the_clear(address: str, tmp_path: Path) -> None:
    with pytest.raises(pflego.SettingError):
        deploy("token", "a", "--tokens", tmp_path / "tokens.json", "--address", address)
    assert not (tmp_path / "tokens.json").exists()


def test_a_gateway_without_a_kit_or_tokens_says_so(tmp_path: Path) -> None:
    write_app(tmp_path / "app", {"steps": 5})
    with pytest.raises(pflego.FolderError):
        deploy("gateway", tmp_path / "app", "--kit", tmp_path / "none", "--tokens", tmp_path / "none.json")
