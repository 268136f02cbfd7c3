"""What `pflego deploy site` and `pflego deploy server` look at before they start; test_processes.py runs them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from flwr.app import Context, Message, MessageType, RecordDict

import pflego
from pflego.deploy import server
from pflego.deploy.certificates import write_certificates, write_key
from pflego.deploy.flower import worker
from pflego.deploy.folder import write_app
from pflego.deploy.inspection import Inspection
from pflego.deploy.node_config import read_node_config
from pflego.deploy.site import accepting, run
from tests.support.grid import MemoryGrid, carried
from tests.support.processes import free_port
from tests.support.sites import CONFIG, sites


@pytest.fixture
def config(tmp_path: Path) -> str:
    write_app(tmp_path / "app", dict(CONFIG))
    node = sites(tmp_path)[998]
    return " ".join(f'{name}="{value}"' for name, value in node.config.items())


def test_a_site_is_tried_before_it_joins(
    config: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class EnoughError(Exception):
        pass

    def stop(seen: Inspection) -> None:
        assert seen.bytes == 4 * (200 * 8 + 200)
        raise EnoughError

    write_certificates(tmp_path / "certs", ["server.example.org"])
    private, _ = write_key(tmp_path / "site.pem")
    join = partial(
        run, tmp_path / "app", superlink="127.0.0.1:1", root_certificates=tmp_path / "certs" / "ca.crt", port=0,
        poll=1, ready=stop,
    )  # fmt: skip
    with pytest.raises(EnoughError):
        join(config, key=private)
    with pytest.raises(pflego.SettingError, match="client-id must be"):
        join(config.replace('client-id="mill"', "client-id=2.5"), key=private)
    assert not (tmp_path / "mill" / "state").exists()
    assert "SuperNode" not in "".join(capfd.readouterr())  # it was loaded, and never began
    with pytest.raises(pflego.FolderError, match="is not there"):
        join(config, key=tmp_path / "other")
    private.chmod(0o644)
    with pytest.raises(pflego.FolderError, match="chmod 600"):
        join(config, key=private)


def test_joining_with_an_app_accepts_it(config: str, tmp_path: Path) -> None:
    joined = accepting(tmp_path / "app", config)
    assert read_node_config(joined)["accepts"] == str((tmp_path / "app").resolve())
    assert accepting(tmp_path / "another", joined) == joined


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("row 3: Smith, diabetes"), "RuntimeError; the site's log says more"),
        (pflego.DataError("own.npz is damaged"), "own.npz is damaged"),
    ],
)
def test_what_went_wrong_is_told_but_not_what_could_tell_of_the_data(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(message: Message, context: Context) -> Message:
        raise error

    monkeypatch.setattr(worker, "app", broken)
    MemoryGrid({}, {})
    reply = worker.answer(
        carried(Message(RecordDict(), 1, MessageType.TRAIN)), Context(1, 1, {}, RecordDict(), {})
    )
    assert reply.error.reason == told


def test_a_server_needs_its_certificates(config: str, tmp_path: Path) -> None:
    with pytest.raises(pflego.FolderError, match="pflego deploy certs"):
        server.run(tmp_path / "app", certs=tmp_path / "certs", home=tmp_path / "flower", port=1)
    assert not (tmp_path / "flower").exists()


def test_a_server_that_cannot_be_begins_nothing(
    config: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_certificates(tmp_path / "certs", ["server.example.org"])
    file = tmp_path / "app" / "pyproject.toml"
    file.write_text(file.read_text().replace("rounds = 4", "rounds = -4"))
    with pytest.raises(pflego.SettingError, match="rounds"):
        server.run(tmp_path / "app", certs=tmp_path / "certs", home=tmp_path / "flower", port=free_port())
    assert not (tmp_path / "flower").exists()
    assert "SuperLink" not in "".join(capfd.readouterr())
