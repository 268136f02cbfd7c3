from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from pflego.cli import app, main
from pflego.settings.tables import known, spelled_option

SHORT = ["--rounds", "1", "--steps", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of three classes, and who holds what."""
    generator = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (generator.normal(size=(120, 4)) + y[:, None]).astype(np.float32)
    ward = np.arange(120) // 15 % 8
    path = tmp_path_factory.mktemp("data") / "wards.npz"
    np.savez(
        path,
        x_train=x,
        y_train=y,
        ward_train=ward,
        x_test=x[:24],
        y_test=y[:24],
        ward_test=ward[:24],
    )
    return path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["advise", *words], catch_exceptions=False, env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def said(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("advice")
    options = ["--partition", "column", "--column", "ward", *SHORT, "--out", str(folder)]
    return invoke(str(data), *options), folder


def test_the_verdict_comes_first_then_the_evidence_then_the_command(said: tuple[Result, Path]) -> None:
    result, folder = said
    assert result.exit_code == 0
    figures = json.loads((folder / "advice.json").read_text())
    places = [
        result.stdout.index(words)
        for words in (
            figures["verdict"].split(" (")[0],
            "Does federating pay?",
            "Does personalising pay?",
            "Who would lose?",
            "How different are the clients?",
            "How sure is that?",
            "does it pay?",
            "who would lose?",
            "on held-out samples",
            "how different the clients are",
            "what a round costs a client",
            "Start with:",
            figures["start"]["command"],
        )
    ]
    assert places == sorted(places)
    assert "95 % interval of the difference does not contain 0" in " ".join(result.stdout.split())
    assert "8 clients, 1 round, 2 splits: about" in result.stderr


def test_the_command_it_gives_runs(
    said: tuple[Result, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = said
    command = shlex.split(json.loads((folder / "advice.json").read_text())["start"]["command"])
    assert command[:2] == ["pflego", "run"]
    short = [*command[1:], "--rounds", "1", "--out", str(tmp_path / "a")]
    assert CliRunner().invoke(app, short, catch_exceptions=False).exit_code == 0
    again = ["run", str(folder / "start.toml"), "--rounds", "1", "--out", str(tmp_path / "b")]
    assert CliRunner().invoke(app, again, catch_exceptions=False).exit_code == 0
    rows = [json.loads((tmp_path / run / "metrics.jsonl").read_text()) for run in "ab"]
    assert rows[0]["loss"] == rows[1]["loss"]


def test_without_the_library_for_pictures_the_figures_are_written(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke(str(data), "--clients", "4", "--partition", "iid", *SHORT, "--out", str(tmp_path))
    assert "for pictures: pip install 'pflego[plots]'" in result.stdout
    assert {file.name for file in tmp_path.iterdir()} == {"advice.json", "start.toml"}


def test_for_machines_it_prints_json_and_nothing_else(data: Path) -> None:
    result = invoke(str(data), "--clients", "6", "--partition", "iid", *SHORT, "--json", "--seed", "2")
    figures = json.loads(result.stdout)
    assert figures["looked_at"] == 6
    assert figures["federating"]["clients"] == 6
    assert set(figures["federating"]["gains"]) == {str(k) for k in range(6)}
    assert figures["start"]["settings"]["seed"] == 2
    assert [standing["name"] for standing in figures["standings"]] == [
        "alone",
        "alone-longer",
        "one-model",
        "own-heads",
        "common-head",
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["digts"], "unknown data set 'digts': did you mean 'digits'?"),
        (["digits", "--clients", "1", "--classes-per-client", "10"], "has nobody to federate with"),
        (["digits", "--classes-per-client", "1"], "there is nothing to compare"),
        (["digits", "--splits", "1"], "splits must be 2 or more"),
        (["digits", "--participation", "99"], "participation asks for 99 clients per round"),
        (["digits", "--steps", "0"], "steps must be a whole number above 0"),
        (["digits", "--out", "/dev/null/a"], "cannot write to the folder /dev/null/a"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_advised_is_refused_in_one_line(
    options: list[str], reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pflego", "advise", *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert reason in err


def test_of_settings_it_takes_those_of_data_and_model_and_what_a_contest_needs() -> None:
    shown = CliRunner().invoke(app, ["advise", "--help"], env={"COLUMNS": "200"}).stdout
    options = set(re.findall(r"--[a-z][a-z-]*", shown))
    taken = [*known("data"), *known("model"), "steps", "participation", "seed", "device"]
    assert options >= {spelled_option(name) for name in taken if name != "data"}  # which is an argument
    assert not options & {"--algorithm", "--client-lr", "--server-lr", "--engine", "--track"}
