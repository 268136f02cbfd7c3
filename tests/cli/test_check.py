import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

import pflego
from pflego.cli import app, main
from tests.cli.test_data import table

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """60 patients of three hospitals."""
    rng = np.random.default_rng(0)
    sites, sick = ["north", "south", "west"], rng.random(60) < 0.5
    rows = [
        f"{sites[k % 3]},{rng.normal(50, 9):.3f},{'abc'[k % 3]},{k},{'ill' if sick[k] else 'well'}"
        for k in range(60)
    ]
    (tmp_path / "patients.csv").write_text("\n".join(["hospital,age,ward,patient,diagnosis", *rows]))
    return Path("patients.csv")


OPTIONS = ["--column", "hospital", "--label", "diagnosis"]


def check(*words: object) -> Result:
    return CliRunner().invoke(app, ["data", "check", *map(str, words)])


def succeed(*words: object) -> str:
    result = check(*words)
    assert result.exit_code == 0, result.stderr or result.exception
    return result.stdout


def test_it_shows_weights_and_points_out_what_may_be_some(tmp_path: Path) -> None:
    rows = [f"{'ab'[k % 2]},{k * k},{k % 2},{k % 4}" for k in range(40)]
    (tmp_path / "wards.csv").write_text("\n".join(["ward,age,label,weight", *rows]))
    text = succeed("wards.csv", "--column", "ward")
    assert "--weight weight" in text
    text = succeed("wards.csv", "--column", "ward", "--weight", "weight")
    assert "weight: how much a row counts" in text
    assert "sum of weights" in text
    assert "of equal weight" in text
    assert "taken as an input" not in text
    assert "pflego run --data wards.csv --column ward --weight weight" in text
    shown = CliRunner().invoke(app, ["data", "show", "wards.csv", "--column", "ward", "--weight", "weight"])
    assert "sum of weights" in shown.stdout
    (tmp_path / "wards.csv").write_text("\n".join(["ward,age,label,weight", *rows, "a,3,1,-2"]))
    refused = check("wards.csv", "--column", "ward", "--weight", "weight")
    assert refused.exit_code == 2
    assert "row 41" in refused.stderr


def test_it_shows_clients_columns_and_classes(path: Path) -> None:
    text = succeed(path, *OPTIONS, "--drop", "patient")
    rows = table(text)
    assert rows["training samples"] == ["16", "16", "16", "48"]
    assert rows["test samples"] == ["4", "4", "4", "12"]
    schema = pflego.load(path, column="hospital", label="diagnosis", drop=["patient"]).schema
    assert schema is not None
    mean, scale = schema.features[0].mean[0], schema.features[0].scale[0]
    assert rows["age"] == [f"number: (value - {mean:.5g}) / {scale:.5g}", "1"]
    assert rows["ward"] == ["category: a, b, c", "3"]
    assert sum(int(rows[name][0]) for name in ("ill", "well")) == 48
    assert "- a sample is 4 numbers" in text
    assert "- for testing: 20 % of each client's samples, drawn" in text


def test_the_command_it_ends_with_trains_on_what_was_checked(path: Path) -> None:
    text = succeed(path, *OPTIONS, "--drop", "patient", "--no-scale", "--test-share", "0.5", "--seed", "3")
    command = shlex.split(text.strip().splitlines()[-1])
    assert command[:4] == ["pflego", "run", "--data", "patients.csv"]
    result = CliRunner().invoke(app, [*command[1:], "--rounds", "1", "--steps", "2", "--out", "run"])
    assert result.exit_code == 0, result.exception
    run = pflego.open_run("run")
    wanted = pflego.load(
        path, column="hospital", label="diagnosis", drop=["patient"], scale=False, test_share=0.5, seed=3
    )
    assert run.federation.fingerprint() == wanted.fingerprint()
    assert run.federation.source == wanted.source


def test_what_looks_wrong_is_said_and_counted(path: Path) -> None:
    text = succeed(path, *OPTIONS)
    assert "! column 'patient' numbers the rows" in text
    assert "ready, but see 1 warning; to train:" in text
    assert "\nready; to train:" in succeed(path, *OPTIONS, "--drop", "patient")


def test_samples_that_are_both_trained_and_tested_on_are_found(path: Path) -> None:
    head, *rows = path.read_text().splitlines()
    parts = [f"{row},{part}" for part in ("train", "test") for row in (rows if part == "train" else rows[:7])]
    path.write_text("\n".join([f"{head},split", *parts]))
    text = succeed(path, *OPTIONS, "--drop", "patient")
    assert (
        "! 7 of 7 test samples have the same inputs as a training sample, 7 of them as one of the same"
        in text
    )
    assert "- for testing: what the data say" in text


def test_everything_that_cannot_be_trained_on_is_said_with_status_2(path: Path) -> None:
    text = path.read_text().replace("patient,", "day,", 1)
    lines = [
        line if k == 0 else line.replace(f",{k - 1},", ",2020-01-01,")
        for k, line in enumerate(text.splitlines())
    ]
    lines[5] = lines[5].replace("south,", "south,not a number ", 1)
    path.write_text("\n".join(lines))
    result = check(path, *OPTIONS)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 2
    assert "pflego: patients.csv: column 'day' holds dates or times" in result.stderr
    assert "column 'age' holds numbers, but" in result.stderr
    assert "row 5" in result.stderr


def test_a_file_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pflego", "data", "check", "none.csv"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert (
        capfd.readouterr().err
        == "pflego: none.csv is no folder and no CSV, Parquet or .npz file that could be read\n"
    )


def test_data_sets_with_a_name_can_be_checked_too() -> None:
    text = succeed("digits", "--clients", "5")
    assert "- a sample is 64 float32 values, taken as they are" in text
    assert "pflego run --data digits --clients 5" in text
    assert "a regression: the label goes from" in succeed("diabetes")


def test_very_many_columns_and_classes_are_cut_short() -> None:
    names = [f"f{k}" for k in range(40)]
    rng = np.random.default_rng(1)
    rows = [
        ",".join(["ab"[k % 2], *(f"{v:.2f}" for v in rng.normal(size=40)), str(k % 35)]) for k in range(140)
    ]
    Path("wide.csv").write_text("\n".join([",".join(["site", *names, "label"]), *rows]))
    text = succeed("wide.csv", "--column", "site")
    assert table(text)["10 more"] == ["", "10"]
    assert "5 more" in table(text)
