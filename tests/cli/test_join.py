from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego as package
from tests.support.afterwards import assert_refused, numbers, patients, pflego, rows
from tests.support.reference import assert_identical


@pytest.fixture
def small(arrays: Path, tmp_path: Path) -> Path:
    """A run that may be changed."""
    return Path(shutil.copytree(arrays, tmp_path / "run"))


@pytest.fixture
def newcomer(tmp_path: Path) -> Path:
    """A client's own file: two of the three classes."""
    rng = np.random.default_rng(9)
    y = np.arange(25) % 2 + 1
    np.savez(tmp_path / "new.npz", x=(rng.normal(size=(25, 4)) / 2 + y[:, None]).astype(np.float32), y=y)
    return tmp_path / "new.npz"


def test_a_newcomer_gets_a_model_and_training_goes_on_with_it(small: Path, newcomer: Path) -> None:
    result = pflego("join", small, "--client", "new", "--data", newcomer)
    assert "client new, 20 training and 5 test samples" in result.stdout
    for word in ("now", "untrained", "alone"):
        assert word in result.stdout
    assert f"pflego run --resume --out {small}" in result.stdout
    joined = package.open_run(small)
    assert list(joined.federation.ids) == [0, 1, 2, 3, "new"]
    pflego("run", "--resume", "--out", small, "--rounds", 12)
    after = package.open_run(small)
    assert len(after.history) == 12
    assert after.history[:4] == joined.history
    assert "new" in {client for number in range(5, 13) for client in after.participants(number)}
    assert not torch.equal(after.states["new"]["head"], joined.states["new"]["head"])
    data = tomllib.loads((small / "settings.toml").read_text())["data"]
    assert data["clients"] == 4
    assert [(one["client"], one["data"]) for one in data["joined"]] == [("new", str(newcomer))]


def test_the_command_does_what_python_does(small: Path, newcomer: Path, tmp_path: Path) -> None:
    """Training after `pflego join` ends with the bits of training after `run.join`."""
    shutil.copytree(small, tmp_path / "python")
    pflego("join", small, "--client", "new", "--data", newcomer, "--steps", 40, "--alone", 0)
    pflego("run", "--resume", "--out", small, "--rounds", 9)
    run = package.open_run(tmp_path / "python")
    ours = package.open_run(small)
    joined = run.join(ours.federation.client("new"), steps=40, alone=0)
    resumed = package.train(
        joined.run.federation, package.models.build("mlp", (4,)), run.algorithm, rounds=9, participation=2,
        device="cpu", out=tmp_path / "python", resume=True, evaluate_every=run.plan.evaluate_every,
    )  # fmt: skip
    assert_identical(ours, resumed)


def test_a_run_may_be_stopped_right_after_joining(small: Path, newcomer: Path, tmp_path: Path) -> None:
    pflego("join", small, "--client", "new", "--data", newcomer, "--alone", 0)
    shutil.copytree(small, tmp_path / "whole")
    pflego("run", "--resume", "--out", tmp_path / "whole", "--rounds", 10)
    for rounds in (5, 6, 10):
        pflego("run", "--resume", "--out", small, "--rounds", rounds)
    runs = [package.open_run(folder) for folder in (small, tmp_path / "whole")]
    for row in runs[0].history[4:6]:
        del row["everyone_accuracy"]  # of where it was stopped
    assert_identical(*runs)


def test_another_folder_leaves_the_run_alone(arrays: Path, newcomer: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in arrays.rglob("*") if path.is_file()}
    pflego("join", arrays, "--client", 7, "--data", newcomer, "--alone", 0, "--out", tmp_path / "wider")
    assert {path: path.read_bytes() for path in arrays.rglob("*") if path.is_file()} == before
    assert list(package.open_run(tmp_path / "wider").federation.ids) == [0, 1, 2, 3, 7]
    said = rows(pflego("predict", tmp_path / "wider", "--client", 7, "--data", newcomer).stdout)
    assert {line["prediction"] for line in said} <= {"1", "2"}


def test_a_new_run_from_its_settings_has_the_newcomer_from_the_start(
    small: Path, newcomer: Path, tmp_path: Path
) -> None:
    pflego("join", small, "--client", "new", "--data", newcomer, "--alone", 0)
    pflego(
        "run", small / "settings.toml", "--rounds", 2, "--participation", "everyone", "--out", tmp_path / "b"
    )
    run = package.open_run(tmp_path / "b")
    assert run.participants(1) == [0, 1, 2, 3, "new"]
    assert len(run.evaluations[2]) == 5


def test_a_table_is_read_as_the_others_were(wards: Path, tmp_path: Path) -> None:
    """The scales and categories are those of the run, and the client's rows those of its name."""
    table = patients(tmp_path / "east.csv", ["east", "harbour"], seed=8)
    pflego("join", wards, "--client", "east", "--data", table, "--out", tmp_path / "run")
    run = package.open_run(tmp_path / "run")
    assert run.federation.schema == package.open_run(wards).federation.schema
    client = run.federation.client("east")
    assert len(client.x_train) + len(client.x_test) == 30
    assert run.federation.schema is not None
    read = np.asarray(run.federation.schema.read(table).x)[:30]
    assert (
        np.unique(read, axis=0).tolist()
        == np.unique(torch.cat([client.x_train, client.x_test]), axis=0).tolist()
    )
    pflego("join", tmp_path / "run", "--client", "harbour", "--data", table, "--alone", 0)
    pflego("run", "--resume", "--out", tmp_path / "run", "--rounds", 6)
    assert list(package.open_run(tmp_path / "run").federation.ids) == [
        "north",
        "south",
        "west",
        "east",
        "harbour",
    ]


def test_a_class_by_a_new_name_is_learned(wards: Path, tmp_path: Path) -> None:
    table = patients(tmp_path / "new.csv", ["east"], seed=8, columns=["diagnosis"])
    table.write_text(table.read_text().replace(",ill", ",very ill"))
    pflego("join", wards, "--client", "east", "--data", table, "--out", tmp_path / "run")
    said = rows(pflego("predict", tmp_path / "run", "--client", "east", "--data", table).stdout)
    assert list(said[0])[3:] == ["probability_well", "probability_very ill"]
    assert {line["prediction"] for line in said} == {"well", "very ill"}
    pflego("run", "--resume", "--out", tmp_path / "run", "--rounds", 6)
    pflego("evaluate", tmp_path / "run")


def test_a_file_that_changed_meanwhile_is_noticed(
    small: Path, newcomer: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pflego("join", small, "--client", "new", "--data", newcomer, "--alone", 0)
    content = dict(np.load(newcomer))
    np.savez(newcomer, x=content["x"] + 1, y=content["y"])
    words = ["run", "--resume", "--out", small, "--rounds", 9]
    assert_refused(words, "has other samples of client 'new' than when it joined", monkeypatch, capfd)
    newcomer.unlink()
    assert_refused(words, f"there is no file or folder {newcomer}", monkeypatch, capfd)
    assert_refused(["evaluate", small], f"there is no file or folder {newcomer}", monkeypatch, capfd)


def test_mistakes_are_named(
    small: Path, wards: Path, newcomer: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def refuse(*words: object, reason: str) -> None:
        assert_refused(["join", *words], reason, monkeypatch, capfd)

    before = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    refuse(small, "--client", 2, "--data", newcomer, reason="two clients are called '2'")
    np.savez(tmp_path / "bare.npz", x=np.zeros((3, 4)))
    refuse(small, "--client", "new", "--data", tmp_path / "bare.npz", reason="needs x and y")
    wide = numbers(tmp_path, "wide")
    content = dict(np.load(wide))
    np.savez(wide, **{key: value[:, :2] if key[0] == "x" else value for key, value in content.items()})
    refuse(small, "--client", "new", "--data", wide, reason="(2,)")
    refuse(small, "--client", "new", "--data", newcomer, "--steps", 0, reason="steps must be a whole number")
    two = patients(tmp_path / "two.csv", ["east", "harbour"], seed=1)
    refuse(wards, "--client", "port", "--data", two, reason="has 2 clients, but none is called 'port'")
    bare = patients(tmp_path / "bare.csv", ["east"], seed=1, columns=["ward"])
    refuse(wards, "--client", "east", "--data", bare, reason="'diagnosis'")
    assert {path: path.read_bytes() for path in small.rglob("*") if path.is_file()} == before


def test_a_shared_head_refuses_a_new_class(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pflego(
        "run", "--data", arrays.parent / "small.npz", "--clients", 4, "--common-head", "--rounds", 2, "--steps", 6,
        "--device", "cpu", "--out", tmp_path / "r",
    )  # fmt: skip
    np.savez(tmp_path / "new.npz", x=np.zeros((6, 4), np.float32), y=[0, 9, 0, 9, 0, 9])
    words = ["join", tmp_path / "r", "--client", "new", "--data", tmp_path / "new.npz"]
    assert_refused(words, "pflego shares a head of 3 outputs, which is trained already", monkeypatch, capfd)
