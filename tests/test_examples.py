"""The examples that make pictures and tables of the documents, at their smallest."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


def test_the_frontier_of_passes_is_kept_drawn_and_not_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "passes.json"
    words = (
        "--clients 4 --participation 2 --degrees 3 --rounds 2 --passes 1,2 --rival-steps 6 --rates 0.1,0.3"
    )
    monkeypatch.setattr(sys, "argv", ["passes.py", *words.split(), "--out", str(out)])
    runpy.run_path(str(FOLDER / "passes.py"), run_name="__main__")
    first, kept = capsys.readouterr().out, json.loads(out.read_text())
    methods = [row["method"] for row in kept["results"]]
    assert sorted(set(methods)) == [
        "FedAvg, 6 steps", "FedPer, 6 steps", "FedRep, 6 steps", "k = 1", "k = 2, Adam", "k = 2, mean"
    ]  # fmt: skip
    assert methods.count("FedAvg, 6 steps") == 2
    best = max(row["everyone_adapted"] for row in kept["results"] if row["method"] == "FedAvg, 6 steps")
    [line] = [line for line in first.splitlines() if line.startswith("| FedAvg")]
    assert f"/ {best:.2f} (24, rate" in line  # 2 rounds of 6 steps, both ways
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    runpy.run_path(str(FOLDER / "passes.py"), run_name="__main__")
    assert json.loads(out.read_text()) == kept
    assert capsys.readouterr().out == first[first.index("| |") :]


def test_estimated_chances_are_right_for_those_who_come_often_and_low_for_those_near_the_cutoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "estimated.json"
    monkeypatch.setattr(sys, "argv", ["estimated.py", "--clients", "300", "--out", str(out)])
    runpy.run_path(str(FOLDER / "estimated.py"), run_name="__main__")
    shares = json.loads(out.read_text())["shares"]
    assert shares["0.5"]["1001"] == pytest.approx(1.0, abs=0.01)
    # An interval is cut after 50 rounds: its mean is (1 - 0.98^50) / 0.02, of 1 / 0.02.
    assert shares["0.02"]["1001"] == pytest.approx(1 - 0.98**50, abs=0.02)
    assert f"| 0.02 | {shares['0.02']['11']:.2f} |" in capsys.readouterr().out


def test_accuracy_against_epsilon_is_kept_drawn_and_not_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "privacy.json", tmp_path / "privacy.png"
    words = "--clients 5 --rounds 2 --epsilons 20 --clips 0.1 --seeds 1 --chance 0.8 --samples 20 --hidden 4"
    words += f" --out {out} --picture {picture}"
    monkeypatch.setattr(sys, "argv", ["privacy.py", *words.split()])
    runpy.run_path(str(FOLDER / "privacy.py"), run_name="__main__")
    kept = json.loads(out.read_text())
    tested = [(row["method"], row["epsilon"]) for row in kept if not row["chosen_by"]]
    assert len(tested) == 7  # three methods with and without noise, and heads on the first backbone
    assert picture.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    runpy.run_path(str(FOLDER / "privacy.py"), run_name="__main__")
    assert json.loads(out.read_text()) == kept
    assert not capsys.readouterr().out


def test_an_attacker_is_right_more_often_without_noise_and_never_more_than_epsilon_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "membership.json"
    words = f"--trials 8 --rounds 3 --noises 0,20 --out {out}"
    monkeypatch.setattr(sys, "argv", ["membership.py", *words.split()])
    runpy.run_path(str(FOLDER / "membership.py"), run_name="__main__")
    exact, noisy = json.loads(out.read_text())["rows"]
    assert exact["right"] >= 0.8
    assert noisy["most"] < 0.6
    assert noisy["right"] < exact["right"]


def test_bytes_and_accuracy_are_noted_drawn_and_not_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "found.json", tmp_path / "found.png"
    words = f"--clients 4 --participation 2 --rounds 4 --every 2 --kinds none,sign --json {out} --picture {picture}"
    monkeypatch.setattr(sys, "argv", ["compression.py", *words.split()])
    runpy.run_path(str(FOLDER / "compression.py"), run_name="__main__")
    said, found = capsys.readouterr().out, out.read_text()
    rows = {(row["method"], row["compression"]): row for row in json.loads(found)}
    assert rows.keys() == {(m, k) for m in ("pflego", "fedavg") for k in ("none", "sign")}
    for method in ("pflego", "fedavg"):
        plain, signs = rows[method, "none"], rows[method, "sign"]
        assert signs["bytes_up"] < plain["bytes_up"] / 25
        assert plain["megabytes"] == pytest.approx(
            [plain["bytes_up"] * 2 * t / 1e6 for t in (2, 4)], abs=1e-4
        )
    assert picture.read_bytes().startswith(b"\x89PNG")
    runpy.run_path(str(FOLDER / "compression.py"), run_name="__main__")
    assert out.read_text() == found
    assert capsys.readouterr().out == said
