from __future__ import annotations

import json
from pathlib import Path

import onnxruntime
import pytest
import torch

import pflego as package
from tests.support.afterwards import assert_refused, pflego

pytestmark = pytest.mark.usefixtures("onnx_operators")


def test_a_clients_model_is_written_in_every_format(arrays: Path, tmp_path: Path) -> None:
    result = pflego("export", arrays, "--client", 1, "--out", tmp_path / "m")
    assert result.stdout == (
        f"client 1's model in {tmp_path / 'm'}: model.safetensors, model.pt2, model.onnx\n"
    )
    assert result.stderr == ""
    run = package.open_run(arrays)
    x = run.federation[0].x_test
    wanted = run.personal_model(1)(x).detach()
    given = onnxruntime.InferenceSession(tmp_path / "m" / "model.onnx").run(None, {"x": x.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(given), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(package.load_model(tmp_path / "m")(x), wanted)


def test_one_format_alone_and_adapted(arrays: Path, tmp_path: Path) -> None:
    pflego("export", arrays, "--client", 1, "--out", tmp_path / "m", "--format", "safetensors", "--adapt")
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["model.json", "model.safetensors"]
    run = package.open_run(arrays)
    x = run.federation[0].x_test
    assert torch.equal(package.load_model(tmp_path / "m")(x), run.personal_model(1, adapt=True)(x))


def test_names_of_classes_come_along(wards: Path, tmp_path: Path) -> None:
    pflego("export", wards, "--client", "west", "--out", tmp_path / "m", "--format", "safetensors")
    card = json.loads((tmp_path / "m" / "model.json").read_text())
    assert card["client"] == "west"
    assert card["classes"] == [{"id": 0, "name": "ill"}, {"id": 1, "name": "well"}]


def test_what_cannot_be_written_is_said(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pflego.after.export.find_spec", lambda name: None)
    why = "for ONNX: pip install 'pflego[export]'"
    result = pflego("export", arrays, "--client", 1, "--out", tmp_path / "m")
    assert result.stderr == f"no onnx file: {why}\n"
    assert result.stdout.endswith("model.safetensors, model.pt2\n")
    words = ["export", arrays, "--client", 1, "--out", tmp_path / "n", "--format", "onnx"]
    assert_refused(words, why, monkeypatch, capfd)
    assert not (tmp_path / "n").exists()


def test_mistakes_are_named(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*words: object, reason: str) -> None:
        assert_refused(["export", *words], reason, monkeypatch, capfd)

    refuse(arrays, "--client", 9, "--out", tmp_path / "m", reason="no client of")
    refuse(arrays, "--client", 1, "--out", tmp_path / "m", "--format", "zip", reason="unknown format 'zip'")
    refuse(arrays, "--client", 1, "--out", arrays, reason="holds a run")
    refuse(tmp_path, "--client", 1, "--out", tmp_path / "m", reason="holds no run")
