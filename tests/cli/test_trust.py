"""A folder that somebody sent is data: opening it runs nothing of theirs, unless the user says so."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pflego as package
from pflego import files
from pflego.after.export import _card_digest
from pflego.runs.folder import RunFolder
from pflego.runs.record import settings_digest
from tests.support.afterwards import assert_refused, numbers, pflego

COMMANDS: dict[str, Callable[[Path, Path], list[object]]] = {
    "evaluate": lambda run, data: ["evaluate", run],
    "report": lambda run, data: ["report", run],
    "predict": lambda run, data: ["predict", run, "--client", 0, "--data", data],
    "export": lambda run, data: ["export", run, "--client", 0, "--out", "m"],
    "join": lambda run, data: ["join", run, "--client", 9, "--data", data],
    "resume": lambda run, data: ["run", "--resume", "--out", run, "--rounds", 5],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return numbers(tmp_path, "small")


@pytest.fixture
def run(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pflego(
        "run", "--data", data, "--clients", 3, "--steps", 2, "--rounds", 2, "--out", "a", "--device", "cpu"
    )
    return tmp_path / "a"


def tamper(run: Path, table: str, value: str) -> None:
    """Let a run's settings name something else, as an attacker would who makes the digests fit."""
    path = run / "settings.toml"
    key = "participation" if table == "run" else "name"
    head, _, tail = path.read_text().partition(f"[{table}]\n")
    path.write_text(
        f"{head}[{table}]\n" + re.sub(rf'^{key} = ".*"$', f'{key} = "{value}"', tail, count=1, flags=re.M)
    )
    folder = RunFolder(run)
    server = run / "checkpoint" / "server.safetensors"
    found = files.read_checked(server)
    facts = dict(found.facts.facts)
    free = {str(name) for name in facts["free"]}  # type: ignore[attr-defined]
    facts["settings"] = settings_digest(folder.settings(), free=free)
    files.write_tensors(server, found.tensors, facts)


def trap(tmp_path: Path) -> Path:
    """A module in the working folder that leaves a mark when it is imported."""
    mark = tmp_path / "it-ran"
    (tmp_path / "trap.py").write_text(f"open({str(mark)!r}, 'w').close()\ndef it(*_): pass\nclass It: pass\n")
    sys.modules.pop("trap", None)
    return mark


@pytest.mark.parametrize(
    ("command", "table"),
    [
        pytest.param(
            command, table, marks=() if table == "model" or command == "evaluate" else pytest.mark.thorough
        )
        for command in COMMANDS
        for table in ("model", "method", "run")
    ],
)
def test_a_run_that_names_code_is_not_opened(
    run: Path, data: Path, tmp_path: Path, table: str, command: str,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    mark = trap(tmp_path)
    tamper(run, table, "trap:It")
    assert_refused(COMMANDS[command](run, data), "--trust", monkeypatch, capfd)
    assert not mark.exists()


def test_with_consent_it_is_loaded(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = trap(tmp_path)
    tamper(run, "model", "trap:it")
    with pytest.raises(package.UserError, match=r"must give a torch\.nn\.Module"):
        package.open_run(run, trust=True)
    assert mark.exists()


def forge(folder: Path, **changes: object) -> None:
    """Change an exported model's card, and let its digest fit."""
    card = json.loads((folder / "model.json").read_text())
    card["backbone"] |= {key: value for key, value in changes.items() if key != "shape"}
    if "shape" in changes:
        card["schema"]["shape"] = changes["shape"]
    card["digest"] = _card_digest(card)
    (folder / "model.json").write_text(json.dumps(card))


def test_an_exported_model_cannot_run_a_command(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "it-ran"
    package.open_run(run).export(0, "m", formats=["safetensors"])
    forge(tmp_path / "m", model="subprocess:Popen", shape=["touch", str(mark)])
    assert_refused(["predict", "m", "--data", data], "m", monkeypatch, capfd)
    forge(tmp_path / "m", model="subprocess:Popen", shape=[4])
    assert_refused(["predict", "m", "--data", data], "--trust", monkeypatch, capfd)
    assert not mark.exists()


@pytest.mark.parametrize("shape", [[0], [-1], [2.5], ["4"], [True], "4"], ids=str)
def test_shapes_are_whole_numbers_above_zero(run: Path, tmp_path: Path, shape: object) -> None:
    package.open_run(run).export(0, tmp_path / "m", formats=["safetensors"])
    forge(tmp_path / "m", shape=shape)
    with pytest.raises(package.UserError):
        package.load_model(tmp_path / "m")


def test_a_program_is_not_unpickled_unasked(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package.open_run(run).export(0, tmp_path / "m", formats=["torch"])

    def never(*_: object) -> None:
        pytest.fail("torch.export.load was called")

    monkeypatch.setattr(torch.export, "load", never)
    assert_refused(["predict", "m", "--data", data], "--trust", monkeypatch, capfd)


def test_an_edited_card_and_exchanged_weights_are_noticed(run: Path, tmp_path: Path) -> None:
    opened = package.open_run(run)
    for client, folder in [(0, "m"), (1, "n")]:
        opened.export(client, tmp_path / folder, formats=["safetensors"])
    card = tmp_path / "m" / "model.json"
    text = card.read_text()
    card.write_text(text.replace('"client": 0', '"client": 1'))
    with pytest.raises(package.FolderError, match="changed since"):
        package.load_model(tmp_path / "m")
    card.write_text(text)
    (tmp_path / "m" / "model.safetensors").write_bytes((tmp_path / "n" / "model.safetensors").read_bytes())
    with pytest.raises(package.FolderError, match="not the file that was exported"):
        package.load_model(tmp_path / "m")


def test_check_says_whether_a_folder_is_whole(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package.open_run(run).export(0, tmp_path / "m", formats=["safetensors"])
    for folder in (run, tmp_path / "m"):
        assert "whole" in pflego("check", folder).stdout
    (run / "metrics.jsonl").write_text("")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"")
    assert_refused(["check", run], "is not whole: history", monkeypatch, capfd)
    assert_refused(["check", "m"], "is not whole: model.safetensors", monkeypatch, capfd)
    assert_refused(["check", tmp_path / "nothing"], "neither a run nor an exported model", monkeypatch, capfd)


def test_a_run_goes_back_to_a_checkpoint_that_was_kept(data: Path, tmp_path: Path) -> None:
    words = ["--data", data, "--clients", 3, "--steps", 2, "--device", "cpu", "--evaluate-every", 1]
    for folder in ("a", "b"):
        pflego("run", *words, "--rounds", 6, "--keep", 3, "--out", tmp_path / folder)
    pflego("run", "--resume", "--out", tmp_path / "a", "--back-to", 4)
    ours, theirs = (package.open_run(tmp_path / folder) for folder in ("a", "b"))
    assert all(torch.equal(ours.shared[name], theirs.shared[name]) for name in ours.shared)
