from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

import pflego
from pflego.cli import app
from pflego.deploy.folder import write_app
from tests.support.sites import arrays, sites, train


def deploy(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["deploy", *map(str, words)], catch_exceptions=False)


@pytest.fixture
def config(tmp_path: Path) -> str:
    np.savez(tmp_path / "own.npz", **arrays(1))  # type: ignore[arg-type]
    return f'client-id="ward 3" data="{tmp_path / "own.npz"}" state="{tmp_path / "state"}" device="cpu"'


def test_an_app_is_written_from_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('algorithm = "ditto"\nrounds = 3\n')
    result = deploy("init", tmp_path / "app", tmp_path / "mine.toml")
    assert result.exit_code == 0
    assert "README.md" in result.stdout
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    assert 'algorithm = "ditto"' in text
    assert "rounds = 3" in text


def test_certificates_and_keys_are_written(tmp_path: Path) -> None:
    assert deploy("certs", tmp_path / "certs", "--host", "localhost", "--host", "127.0.0.1").exit_code == 0
    assert deploy("key", tmp_path / "site").exit_code == 0
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "ca.crt",
        "ca.key",
        "server.pem",
        "server.key",
        "site",
        "site.pub",
    }


def test_members_come_and_go_when_the_operator_says_so(tmp_path: Path) -> None:
    nodes, out = sites(tmp_path), tmp_path / "server"
    train(nodes, out, rounds=1, members="clinic, harbour, mill, school")
    assert deploy("member", "join", "tower", "--out", out).exit_code == 0
    assert deploy("member", "leave", "mill", "--out", out).exit_code == 0
    with pytest.raises(pflego.SettingError, match="no client 'palace'"):
        deploy("member", "leave", "palace", "--out", out)
    run = train(nodes, out, rounds=2, members="clinic, harbour, mill, school")
    assert run.participants(2) == ["clinic", "harbour", "school", "tower"]


def test_a_site_sees_what_leaves_and_what_does_not(tmp_path: Path, config: str) -> None:
    write_app(tmp_path / "app", {"steps": 2})
    before = set(tmp_path.rglob("*"))
    result = deploy("inspect", tmp_path / "app", "--node-config", config)
    assert result.exit_code == 0
    leaves, _, stays = result.stdout.partition("What never leaves")
    assert "client: ward 3" in leaves
    assert "classes: [0, 1, 2]" in leaves
    assert "samples: 18" in leaves
    weight, bias = 200 * 8 * 4, 200 * 4  # float32
    assert f"{weight + bias:,} bytes of weights" in leaves
    assert "1.weight" in leaves
    assert "head" not in leaves
    for name in ("training inputs", "training labels", "test inputs", "test labels", "head"):
        assert name in stays
    assert "warning" not in result.stdout
    assert set(tmp_path.rglob("*")) == before


def test_a_head_that_is_shared_is_shown_to_leave(tmp_path: Path, config: str) -> None:
    write_app(tmp_path / "app", {"steps": 2, "common_head": True})
    leaves = deploy("inspect", tmp_path / "app", "--node-config", config).stdout.partition("What comes in")[0]
    assert "head" in leaves


def test_code_that_is_not_pflegos_is_pointed_out(tmp_path: Path, config: str) -> None:
    write_app(tmp_path / "app", {"steps": 2})
    file = tmp_path / "app" / "federation" / "client_app.py"
    file.write_text(file.read_text() + "import os\n")
    (tmp_path / "app" / "federation" / "more.py").write_text("")
    shown = deploy("inspect", tmp_path / "app", "--node-config", config).stdout
    assert "client_app.py is not as pflego wrote it" in shown
    assert "more.py is not as pflego wrote it" in shown
    assert "server_app.py is not" not in shown


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ('data="own.npz" state="s"', "the node config has no client_id"),
        ("client-id=ward", "cannot read the node config"),
        ('client-id=1 data="none.npz" state="s"', "cannot read none.npz"),
        ('client-id=1 data="own.csv" state="s"', "needs a schema"),
        ('client-id=1 data="digits" stat="s" state="s"', "unknown node setting 'stat': did you mean 'state'"),
        ('client-id=99 data="digits" state="s"', "no client is called 99"),
        ('client-id=true data="digits" state="s"', "client-id must be a text or a whole number"),
    ],
)
def test_a_wrong_node_config_is_one_clear_line(words: str, why: str, tmp_path: Path) -> None:
    write_app(tmp_path / "app", {})
    with pytest.raises(pflego.UserError, match=why):
        deploy("inspect", tmp_path / "app", "--node-config", words)


def test_a_folder_without_an_app_is_refused(tmp_path: Path, config: str) -> None:
    with pytest.raises(pflego.UserError, match="is no folder of a Flower app"):
        deploy("inspect", tmp_path, "--node-config", config)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(pflego.UserError, match="is not that of a Flower app"):
        deploy("inspect", tmp_path, "--node-config", config)


def test_a_site_with_a_table_reads_it_by_the_schema_of_all(tmp_path: Path) -> None:
    rows = [f"{age},{ward},{label}" for age, ward, label in [(30, "a", "well"), (60, "b", "ill")] * 10]
    (tmp_path / "south.csv").write_text("age,ward,label\n" + "\n".join(rows) + "\n")
    more = [f"north,{age},c,gone" for age in range(40, 50)]
    everything = [*(f"south,{row}" for row in rows), *more]
    (tmp_path / "all.csv").write_text("client,age,ward,label\n" + "\n".join(everything) + "\n")
    made = CliRunner().invoke(
        app,
        [
            "data",
            "schema",
            str(tmp_path / "all.csv"),
            "--column",
            "client",
            "--out",
            str(tmp_path / "s.json"),
        ],
        catch_exceptions=False,
    )
    assert made.exit_code == 0
    write_app(tmp_path / "app", {"steps": 2})
    config = (
        f'client-id="south" data="{tmp_path / "south.csv"}" schema="{tmp_path / "s.json"}" '
        f'state="{tmp_path}" device="cpu"'
    )
    shown = deploy("inspect", tmp_path / "app", "--node-config", config).stdout
    assert "classes: [1, 2]" in shown  # of gone, ill, well
    assert "shape: [4]" in shown  # age, and three wards
