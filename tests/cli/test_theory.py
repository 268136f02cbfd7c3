from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pflego
from pflego.cli import app
from pflego.training.convergence import SquaredGradient
from tests.support.reference import gradients, world


def test_the_rate_of_corollary_1_is_measured_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "rate.png"
    options = ["--clients", "4", "--classes-per-client", "3", "--steps", "5", "--horizons", "16,4"]
    result = CliRunner().invoke(
        app, ["theory", "rate", *options, "--out", str(picture)], catch_exceptions=False
    )
    assert result.exit_code == 0
    first, second = json.loads(picture.with_suffix(".json").read_text())
    assert (first["rounds"], second["rounds"]) == (4, 16)
    assert second["server_lr"] == pytest.approx(first["server_lr"] / 2)
    assert second["squared_gradient"] < first["squared_gradient"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_squared_gradient_is_the_whole_federations() -> None:
    twin = world()
    watcher = SquaredGradient()
    run = pflego.train(
        twin.federation, twin.model, pflego.PFLEGO(), rounds=2, participation=2, callbacks=[watcher]
    )
    twin.net.V, twin.net.v = run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy()
    parts = [
        gradients(twin.net, run.states[f"c{i}"]["head"].numpy(), site) for i, site in enumerate(twin.sites)
    ]
    dV, dv = (sum(a * g[k] for a, g in zip(twin.alphas, parts, strict=True)) for k in (0, 1))
    assert watcher.values[-1] == pytest.approx(np.sum(np.square(dV)) + np.sum(np.square(dv)), rel=1e-10)
    assert len(watcher.values) == 2


@pytest.mark.parametrize("horizons", ["ten", "0,5", ""])
def test_horizons_must_be_numbers_of_rounds(horizons: str) -> None:
    with pytest.raises(pflego.UserError, match="--horizons"):
        CliRunner().invoke(app, ["theory", "rate", "--horizons", horizons], catch_exceptions=False)
