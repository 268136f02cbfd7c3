"""A method and a participation process of one's own on the command line: module:Name."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

import pflego as package
from pflego.comparison.compare import settings_for
from pflego.settings.tables import Settings
from pflego.tuning.space import Range, resolve, usual
from tests.support.afterwards import assert_refused, numbers, pflego
from tests.support.reference import assert_identical

CODE = '''
from dataclasses import dataclass

import numpy as np

import pflego
from pflego.declaration import Strength


@dataclass(frozen=True, kw_only=True)
class Mixed(pflego.FedAvg):
    """FedAvg, with fields that others have not.

    Parameters
    ----------
    alpha
        How much is mixed. It is called like a setting of the data.
    warmth
        How warm it is.
    """

    alpha: Strength = 0.5
    warmth: float = 1.0


class Alternating:
    """The first half of the clients, or the second, with equal chance."""

    def check(self, clients):
        pass

    def expected(self, clients):
        return clients / 2

    def draw(self, clients, generator):
        return np.arange(clients // 2) + int(generator.integers(2)) * (clients // 2)


class Nothing:
    pass
'''
MIXED = "guests_of_tests:Mixed"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of somebody else, in the working folder."""
    (tmp_path / "guests_of_tests.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "guests_of_tests", raising=False)


@pytest.fixture
def common(tmp_path: Path) -> list[object]:
    """Options of a run that takes no time."""
    data = numbers(tmp_path, "small")
    return ["--data", data, "--clients", 4, "--steps", 2, "--rounds", 3, "--device", "cpu"]


def test_a_method_of_ones_own_brings_its_options(common: list[object], tmp_path: Path) -> None:
    pflego("run", *common, "--algorithm", MIXED, "--warmth", 2, "--method-alpha", 0.7, "--out", "a")
    tables = tomllib.loads((tmp_path / "a" / "settings.toml").read_text())
    assert tables["method"].items() >= {"name": MIXED, "steps": 2, "warmth": 2.0, "alpha": 0.7}.items()
    assert "alpha" not in tables["data"]
    pflego("run", *common, "--algorithm", "fedavg", "--out", "b")  # it does what FedAvg does
    assert_identical(package.open_run("a", trust=True), package.open_run("b"))


def test_its_run_is_resumed_and_run_again_from_its_settings(common: list[object]) -> None:
    words = ["run", *common, "--algorithm", MIXED, "--method-alpha", 0.7, "--evaluate-every", 1]
    pflego(*words, "--out", "a")
    pflego("run", "--resume", "--out", "a", "--rounds", 5, "--trust")
    pflego("run", "a/settings.toml", "--out", "b")
    runs = [package.open_run(folder, trust=True) for folder in ("a", "b")]
    assert [run.algorithm.settings()["alpha"] for run in runs] == [0.7, 0.7]
    assert_identical(*runs)


def test_its_options_are_in_the_help_where_it_is_named() -> None:
    assert "--warmth" not in pflego("run", "--help").stdout
    for words in (["run", "--algorithm", MIXED], ["compare", "--algorithms", f"pflego,{MIXED}"]):
        shown = pflego(*words, "--help").stdout
        assert "How warm it is" in shown
        assert "--method-alpha" in shown


def test_it_is_compared_with_others_and_settings_go_where_they_belong(
    common: list[object], tmp_path: Path
) -> None:
    given = {
        "alpha": 0.3,
        "partition": "dirichlet",
        "method.alpha": 0.9,
        "warmth": 3.0,
        "fedavg": {"steps": 7},
    }
    names = ["fedavg", MIXED]
    fedavg, mixed = (settings_for(name, given, 0, tmp_path, others=names) for name in names)
    assert fedavg.flat["alpha"] == mixed.flat["alpha"] == 0.3
    assert fedavg.tables["method"] == {"name": "fedavg", "steps": 7}
    assert mixed.tables["method"] == {"name": MIXED, "alpha": 0.9, "warmth": 3.0}
    table = {**given, "mixed": {"alpha": 0.2}}
    assert settings_for(MIXED, table, 0, tmp_path, others=names).tables["method"]["alpha"] == 0.2
    pflego("compare", *common, "--algorithms", ",".join(names), "--out", "both")
    rows = json.loads((tmp_path / "both" / "comparison.json").read_text())
    assert [row["algorithm"] for row in rows] == ["fedavg", "mixed"]
    assert rows[0]["curves"] == rows[1]["curves"]


def test_its_fields_can_be_tuned() -> None:
    settings = Settings.of({"algorithm": MIXED, "alpha": 0.3, "partition": "dirichlet"})
    spaces = usual(settings.algorithm)
    assert spaces["method.alpha"] == Range(0.005, 50.0, log=True)
    assert resolve(settings.flat, spaces) == spaces
    with pytest.raises(package.SettingError, match="alpha must be the same in all trials"):
        resolve(settings.flat, {"alpha": Range(0.1, 1.0)})


def test_a_participation_process_of_ones_own_is_drawn_from(common: list[object], tmp_path: Path) -> None:
    process = "guests_of_tests:Alternating"
    pflego("run", *common, "--participation", process, "--rounds", 8, "--out", "a")
    assert tomllib.loads((tmp_path / "a" / "settings.toml").read_text())["run"]["participation"] == process
    run = package.open_run("a", trust=True)
    cohorts = [run.participants(number) for number in range(1, 9)]
    assert {tuple(cohort) for cohort in cohorts} == {(0, 1), (2, 3)}
    pflego("run", "--resume", "--out", "a", "--rounds", 9, "--trust")
    again = package.open_run("a", trust=True)
    assert again.history[:8] == run.history
    assert [again.participants(number) for number in range(1, 9)] == cohorts


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--algorithm", "nowhere_at_all:Mixed"], "'nowhere_at_all:Mixed'"),
        (["--algorithm", "guests_of_tests:Mxied"], "'guests_of_tests:Mxied'"),
        (["--algorithm", "guests_of_tests:Nothing"], "is no class of pflego.Algorithm's kind"),
        (["--algorithm", MIXED, "--method-alpha", "-1"], "alpha must be a number at least 0"),
        (["--algorithm", MIXED, "--warmth", "hot"], "warmth must be a number, not 'hot'"),
        (["--participation", "guests_of_tests:Nothing"], "it needs check, expected and draw"),
        (["--participation", "guests_of_tests:Missing"], "'guests_of_tests:Missing'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_with_it_is_one_line(
    options: list[str],
    reason: str,
    common: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert_refused(["run", *common, *options, "--out", "a"], reason, monkeypatch, capfd)
    assert not (tmp_path / "a").exists()
