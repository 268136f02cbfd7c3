from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego as package
from tests.support.afterwards import assert_refused, patients, pflego, rows


def softmax(z: torch.Tensor) -> list[list[float]]:
    e = np.exp(z.double().numpy() - z.double().numpy().max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)).tolist()  # type: ignore[no-any-return]


def test_a_client_says_the_class_and_all_probabilities(wards: Path, tmp_path: Path) -> None:
    table = patients(tmp_path / "new.csv", ["?"], seed=1, each=7, columns=())
    result = pflego("predict", wards, "--client", "south", "--data", table)
    said = rows(result.stdout)
    assert list(said[0]) == ["row", "client", "prediction", "probability_ill", "probability_well"]
    assert [line["row"] for line in said] == [str(row) for row in range(1, 8)]
    assert {line["client"] for line in said} == {"south"}
    run = package.open_run(wards)
    schema = run.federation.schema
    assert schema is not None
    outputs = run.personal_model("south")(torch.as_tensor(np.asarray(schema.read(table).x))).detach()
    for line, own in zip(said, softmax(outputs), strict=True):
        given = [float(line["probability_ill"]), float(line["probability_well"])]
        np.testing.assert_allclose(given, own, rtol=1e-5)
        assert line["prediction"] == ["ill", "well"][int(np.argmax(own))]
    assert result.stderr == ""


def test_labels_in_the_file_give_the_accuracy(wards: Path, tmp_path: Path) -> None:
    table = patients(tmp_path / "new.csv", ["?"], seed=2, each=20, columns=["diagnosis"])
    result = pflego("predict", wards, "--client", "north", "--data", table)
    truth = [line["diagnosis"] for line in rows(table.read_text())]
    right = sum(said["prediction"] == true for said, true in zip(rows(result.stdout), truth, strict=True))
    assert result.stderr == f"accuracy {100 * right / 20:.2f} %, 20 samples\n"


def test_a_column_of_clients_gives_every_sample_its_own_model(wards: Path, tmp_path: Path) -> None:
    mixed = ["west", "north", "west", "south"]
    table = patients(tmp_path / "new.csv", mixed, seed=3, each=2)
    said = {"row", "client", "prediction"}
    together = rows(pflego("predict", wards, "--data", table).stdout)
    assert [line["client"] for line in together] == [ward for ward in mixed for _ in range(2)]
    for ward in set(mixed):
        alone = rows(pflego("predict", wards, "--data", table, "--client", ward).stdout)
        for mine, line in zip(together, alone, strict=True):
            if mine["client"] == ward:
                assert {name: mine[name] for name in said} == {name: line[name] for name in said}
                for name in set(line) - said:  # products of matrices are rounded by how many rows they have
                    assert float(mine[name]) == pytest.approx(float(line[name]), rel=1e-5)


def test_json_holds_the_same_in_a_file(wards: Path, tmp_path: Path) -> None:
    table = patients(tmp_path / "new.csv", ["north"], seed=4, each=3)
    printed = rows(pflego("predict", wards, "--data", table).stdout)
    pflego("predict", wards, "--data", table, "--out", tmp_path / "deep" / "p.json")
    written = json.loads((tmp_path / "deep/p.json").read_text())
    for line, one in zip(printed, written, strict=True):
        assert (str(one["row"]), one["client"], one["prediction"]) == tuple(line.values())[:3]
        assert {f"probability_{name}": str(p) for name, p in one["probabilities"].items()} == {
            name: value for name, value in line.items() if name.startswith("probability")
        }
    assert (
        pflego("predict", wards, "--data", table, "--format", "json").stdout
        == (tmp_path / "deep/p.json").read_text()
    )


def test_clients_with_other_classes_leave_a_blank(arrays: Path, tmp_path: Path) -> None:
    run = package.open_run(arrays)
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 4), np.float32))
    said = rows(pflego("predict", arrays, "--client", 1, "--data", tmp_path / "new.npz").stdout)
    own = run.federation.client(1).classes.tolist()
    assert list(said[0])[3:] == [f"probability_{c}" for c in own]


def test_a_regression_gives_numbers(sums: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=x, y=x.sum(axis=1))
    result = pflego("predict", sums, "--client", 2, "--data", tmp_path / "new.npz")
    said = [float(line["prediction"]) for line in rows(result.stdout)]
    np.testing.assert_allclose(
        said, package.open_run(sums).personal_model(2).predict(torch.from_numpy(x))[:, 0], rtol=1e-5
    )
    rmse = np.sqrt(np.mean((np.array(said) - x.sum(axis=1)) ** 2))
    assert result.stderr == f"rmse {rmse:.4f}, 5 samples\n"
    nested = json.loads(
        pflego("predict", sums, "--client", 2, "--data", tmp_path / "new.npz", "--format", "json").stdout
    )
    assert [one["prediction"] for one in nested] == said


def test_adapted_models_are_those_after_the_clients_own_steps(arrays: Path, tmp_path: Path) -> None:
    x = np.ones((1, 4), np.float32)
    np.savez(tmp_path / "new.npz", x=x)
    words = ["predict", arrays, "--client", 0, "--data", tmp_path / "new.npz", "--format", "json"]
    (adapted,) = json.loads(pflego(*words, "--adapt").stdout)
    model = package.open_run(arrays).personal_model(0, adapt=True)
    np.testing.assert_allclose(
        list(adapted["probabilities"].values()), softmax(model(torch.from_numpy(x)).detach())[0], rtol=1e-5
    )
    assert json.loads(pflego(*words).stdout) != [adapted]


def test_models_of_every_method_predict(of_every_method: Path, tmp_path: Path) -> None:
    run = package.open_run(of_every_method)
    client = run.federation.client(3)
    np.savez(tmp_path / "new.npz", x=client.x_test.numpy(), y=client.y_test.numpy())
    result = pflego("predict", of_every_method, "--client", 3, "--data", tmp_path / "new.npz")
    row = run.evaluate()[3]
    assert row["accuracy"] is not None
    assert result.stderr == f"accuracy {100 * row['accuracy']:.2f} %, {row['samples']} samples\n"


@pytest.mark.parametrize("file_format", ["safetensors", "torch"])
def test_an_exported_model_says_the_same_without_the_run(
    wards: Path, tmp_path: Path, file_format: str
) -> None:
    table = patients(tmp_path / "new.csv", ["south"], seed=5, each=6)
    wanted = pflego("predict", wards, "--data", table)
    package.open_run(wards).export("south", tmp_path / "model", formats=[file_format])  # type: ignore[list-item]
    trusted = ["--trust"] if file_format == "torch" else []
    given = pflego("predict", tmp_path / "model", "--data", table, *trusted)
    assert given.stderr == wanted.stderr
    for ours, theirs in zip(rows(given.stdout), rows(wanted.stdout), strict=True):
        assert list(ours.values())[:3] == list(theirs.values())[:3]
        np.testing.assert_allclose(
            [float(p) for p in list(ours.values())[3:]],
            [float(p) for p in list(theirs.values())[3:]],
            rtol=1e-5,
        )


def test_what_an_exported_model_cannot_do_is_refused(
    wards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package.open_run(wards).export("south", tmp_path / "model", formats=["safetensors"])
    table = patients(tmp_path / "new.csv", ["south", "north"], seed=6, each=1)
    words: list[object] = ["predict", tmp_path / "model", "--data", table]
    assert_refused(words, "is the model of client 'south', not of 'north'", monkeypatch, capfd)
    assert_refused([*words, "--client", "west"], "not of 'west'", monkeypatch, capfd)
    assert_refused(
        [*words, "--client", "south", "--adapt"], "needs the client's training data", monkeypatch, capfd
    )
    assert len(rows(pflego(*words, "--client", "south").stdout)) == 2


def test_mistakes_are_named(
    wards: Path,
    arrays: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def refuse(*words: object, reason: str) -> None:
        assert_refused(["predict", *words], reason, monkeypatch, capfd)

    table = patients(tmp_path / "new.csv", ["north", "east"], seed=7, each=1)
    refuse(wards, "--data", table, reason=f"pflego join {wards} --client east --data FILE")
    refuse(
        wards, "--data", table, "--client", "nroth", reason="is called 'nroth', it has 3: north, south, west"
    )
    bare = patients(tmp_path / "bare.csv", ["?"], seed=7, each=1, columns=())
    refuse(wards, "--data", bare, reason="does not say whose its samples are: name a client with --client")
    refuse(wards, "--data", tmp_path / "absent.csv", "--client", "north", reason="absent.csv")
    refuse(
        wards,
        "--data",
        bare,
        "--client",
        "north",
        "--out",
        tmp_path / "p.txt",
        reason="neither .csv nor .json",
    )
    refuse(wards, "--data", bare, "--client", "north", "--format", "xml", reason="unknown format 'xml'")
    refuse(tmp_path / "nowhere", "--data", bare, reason="holds no run")
    np.savez(tmp_path / "wide.npz", x=np.zeros((1, 9), np.float32))
    refuse(arrays, "--data", tmp_path / "wide.npz", "--client", 0, reason="(9,)")
