from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pflego
from tests.support.sites import NAMES, PATIENCE, arrays, sites, train


def test_a_federation_can_be_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "flwr.pflego"):
        run = train(sites(tmp_path), tmp_path / "server", rounds=1, members="tower, clinic")
    assert run.federation.ids == ["clinic", "tower"]
    assert "client 'mill' is not among those this run is for" in caplog.text


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"members": "clinic, palace"}, "and still needed are palace"),
        ({"min-clients": 6}, "5 clients are here that fit together, and still needed are 6 in all"),
    ],
)
def test_who_is_not_there_in_time_is_named(wanted: dict[str, str | int], why: str, tmp_path: Path) -> None:
    with pytest.raises(pflego.UserError, match=why):
        train(sites(tmp_path), tmp_path / "server", wait=1, **wanted)
    assert not (tmp_path / "server" / "settings.toml").exists()


def test_a_run_is_not_gone_on_with_by_others(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "server", rounds=1, members="tower, clinic")
    with pytest.raises(pflego.UserError, match="is of other clients than clinic, mill"):
        train(nodes, tmp_path / "server", rounds=2, members="mill, clinic")


def test_a_client_whose_data_have_changed_is_turned_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "server", rounds=1)
    np.savez(tmp_path / "mill" / "own.npz", **arrays(NAMES.index("mill") + 1))  # type: ignore[arg-type]
    with caplog.at_level("WARNING", "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=2, wait=PATIENCE)
    assert run.history[1]["missing"] == 1
    assert "client 'mill' now has 26 samples and had 22: start a new run" in caplog.text


def test_a_damaged_list_of_members_is_refused_and_left_alone(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "server", rounds=1)
    file = tmp_path / "server" / "federation.json"
    file.write_text("{}")
    with pytest.raises(pflego.FolderError, match=r"federation.json cannot be read and was left as it is"):
        train(nodes, tmp_path / "server", rounds=2)
    assert file.read_text() == "{}"
