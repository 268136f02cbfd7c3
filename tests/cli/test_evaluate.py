from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import pflego as package
from tests.support.afterwards import assert_refused, patients, pflego, rows


def test_everybody_has_a_line_and_all_together_one(arrays: Path, tmp_path: Path) -> None:
    result = pflego("evaluate", arrays, "--out", tmp_path / "e.csv")
    run = package.open_run(arrays)
    written = rows((tmp_path / "e.csv").read_text())
    assert list(written[0]) == ["id", "samples", "loss", "accuracy"]
    assert written == [{key: str(value) for key, value in row.items()} for row in run.evaluate()]
    right = sum(float(row["accuracy"]) * int(row["samples"]) for row in written)
    together = right / sum(int(row["samples"]) for row in written)
    worst = min(float(row["accuracy"]) for row in written)
    lines = [line for line in result.stdout.splitlines() if "│" in line]
    assert len(lines) == len(run.federation) + 2
    assert f"{100 * together:.2f} %" in lines[-2]
    assert "all together" in lines[-2]
    assert f"{100 * worst:.2f} %" in lines[-1]
    assert "worst tenth" in lines[-1]


def test_json_has_the_clients_and_what_they_come_to(arrays: Path, tmp_path: Path) -> None:
    pflego("evaluate", arrays, "--adapt", "--out", tmp_path / "e.json")
    written = json.loads((tmp_path / "e.json").read_text())
    rows = package.open_run(arrays).evaluate(adapt=True)
    assert written["clients"] == rows
    figures = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    assert written["worst_tenth"] == min(figures)
    samples = [row["samples"] for row in rows]
    assert written["accuracy"] == pytest.approx(np.average(figures, weights=samples), abs=1e-12)


def test_one_client_alone(arrays: Path, tmp_path: Path) -> None:
    result = pflego("evaluate", arrays, "--client", 2, "--out", tmp_path / "e.json")
    written = json.loads((tmp_path / "e.json").read_text())
    assert written["clients"] == [package.open_run(arrays).evaluate()[2]]
    assert "worst tenth" not in result.stdout


def test_new_samples_take_the_place_of_the_clients_own(wards: Path, tmp_path: Path) -> None:
    table = patients(tmp_path / "new.csv", ["west", "north", "west"], seed=1, each=20)
    pflego("evaluate", wards, "--data", table, "--out", tmp_path / "e.json")
    written = json.loads((tmp_path / "e.json").read_text())
    truth = [line["diagnosis"] for line in rows(table.read_text())]
    said = rows(pflego("predict", wards, "--data", table).stdout)
    for line in written["clients"]:
        mine = [
            (one["prediction"] == true, float(one[f"probability_{true}"]))
            for one, true in zip(said, truth, strict=True)
            if one["client"] == line["id"]
        ]
        assert line["samples"] == len(mine)
        assert line["accuracy"] == pytest.approx(np.mean([right for right, _ in mine]))
        assert line["loss"] == pytest.approx(-np.mean(np.log([p for _, p in mine])), rel=1e-4)
    assert [line["id"] for line in written["clients"]] == ["west", "north"]
    right = [one["prediction"] == true for one, true in zip(said, truth, strict=True)]
    assert written["accuracy"] == pytest.approx(np.mean(right))


def test_one_model_on_everybodys_samples(wards: Path, tmp_path: Path) -> None:
    table = patients(tmp_path / "new.csv", ["west", "north"], seed=1, each=10)
    pflego("evaluate", wards, "--data", table, "--client", "south", "--out", tmp_path / "e.json")
    (line,) = json.loads((tmp_path / "e.json").read_text())["clients"]
    said = pflego("predict", wards, "--data", table, "--client", "south").stderr
    assert said == f"accuracy {100 * line['accuracy']:.2f} %, 20 samples\n"
    assert (line["id"], line["samples"]) == ("south", 20)


def test_a_class_that_a_client_never_had_counts_as_an_error(arrays: Path, tmp_path: Path) -> None:
    run = package.open_run(arrays)
    client = run.federation.client(0)
    strange = [c for c in (0, 1, 2, 3) if c not in client.classes.tolist()]
    x = np.concatenate([client.x_train.numpy(), client.x_train.numpy()[: len(strange)]])
    np.savez(tmp_path / "new.npz", x=x, y=[*client.y_train.tolist(), *strange])
    pflego("evaluate", arrays, "--data", tmp_path / "new.npz", "--client", 0, "--out", tmp_path / "e.json")
    (line,) = json.loads((tmp_path / "e.json").read_text())["clients"]
    known = int((run.personal_model(0).predict(client.x_train) == client.y_train).sum())
    assert line["accuracy"] == pytest.approx(known / len(x))


def test_a_regression_is_judged_by_its_error(sums: Path, tmp_path: Path) -> None:
    pflego("evaluate", sums, "--out", tmp_path / "e.json")
    written = json.loads((tmp_path / "e.json").read_text())
    run = package.open_run(sums)
    squares = [
        (run.personal_model(client.id).predict(client.x_test)[:, 0] - client.y_test).square()
        for client in run.federation
    ]
    for line, own in zip(written["clients"], squares, strict=True):
        assert line["rmse"] == pytest.approx(float(own.mean()) ** 0.5, rel=1e-5)
    pooled = float(sum(own.sum() for own in squares)) / sum(len(own) for own in squares)
    assert written["rmse"] == pytest.approx(pooled**0.5, rel=1e-5)
    assert written["worst_tenth"] == max(line["rmse"] for line in written["clients"])


def test_every_method_is_evaluated_as_its_run_was(of_every_method: Path, tmp_path: Path) -> None:
    pflego("evaluate", of_every_method, "--out", tmp_path / "e.json")
    written = json.loads((tmp_path / "e.json").read_text())
    last = json.loads((of_every_method / "metrics.jsonl").read_text().splitlines()[-1])
    assert written["accuracy"] == last["everyone_accuracy"]


def test_every_methods_models_are_mixed_with_neighbours(of_every_method: Path, tmp_path: Path) -> None:
    pflego("evaluate", of_every_method, "--knn", "--out", tmp_path / "e.json")
    written = json.loads((tmp_path / "e.json").read_text())
    run = package.open_run(of_every_method)
    rows = package.neighbours.evaluate(run)
    assert written["clients"] == rows
    if run.algorithm.uses_shared_model:  # one that is a client's own may have learned its samples by heart
        assert rows != run.evaluate()


def test_mistakes_are_named(
    wards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*words: object, reason: str) -> None:
        assert_refused(["evaluate", *words], reason, monkeypatch, capfd)

    bare = patients(tmp_path / "bare.csv", ["?"], seed=7, each=1, columns=())
    refuse(wards, "--data", bare, "--client", "north", reason="has no labels to compare with: pflego predict")
    refuse(wards, "--client", "east", reason="no client of")
    refuse(wards, "--out", tmp_path / "e.xlsx", reason="neither .csv nor .json")
    refuse(tmp_path, reason="holds no run")
