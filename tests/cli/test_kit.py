"""pflego kit, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pflego.deploy.folder import write_app
from pflego_light import Kit
from tests.support.afterwards import assert_refused, pflego

pytestmark = pytest.mark.usefixtures("onnx_operators")


def test_a_kit_of_settings_is_read_by_a_light_client(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(
        'data = "digits"\nclients = 5\nsteps = 7\nseed = 3\nslice_size = 16\n'
    )
    told = pflego("kit", tmp_path / "settings.toml", "--out", tmp_path / "kit")
    assert "spec.json" in told.stdout
    kit = Kit.read(tmp_path / "kit")
    assert kit.method["steps"] == 7
    assert kit.shapes == {"1.weight": (200, 64), "1.bias": (200,)}
    spec = json.loads((tmp_path / "kit" / "spec.json").read_text())
    assert (spec["task"], spec["classes"], spec["seed"], spec["memory"]["slice"]) == (
        "classification",
        [*range(10)],
        3,
        16,
    )


def test_a_kit_of_weighted_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{'ab'[k % 2]},{k * k},{k % 2},{1 + k % 4}" for k in range(40)]
    (tmp_path / "wards.csv").write_text("\n".join(["ward,age,label,w", *rows]))
    settings = f'data = "{tmp_path / "wards.csv"}"\ncolumn = "ward"\nweight = "w"\n'
    (tmp_path / "settings.toml").write_text(settings)
    words = ["kit", tmp_path / "settings.toml", "--out", tmp_path / "kit"]
    assert_refused(words, "weights", monkeypatch, capfd)


@pytest.mark.parametrize(
    ("options", "reason"),
    [([], "--shape"), (["--shape", "x"], "shape"), (["--shape", "8", "--dtype", "word"], "dtype")],
)
def test_an_app_has_no_data_and_says_what_is_missing(
    options: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_app(tmp_path / "app", {})
    words = ["kit", tmp_path / "app", "--out", tmp_path / "kit", *options]
    assert_refused(words, reason, monkeypatch, capfd)
    assert not (tmp_path / "kit").exists()
