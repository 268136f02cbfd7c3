"""What a gateway looks at before it opens."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest
import torch

import pflego
from pflego.after.kit import Graphs, write_kit
from pflego.deploy.certificates import write_certificates
from pflego.deploy.flower.app_config import AppConfig, Deployment
from pflego.deploy.folder import write_app
from pflego.deploy.gateway import opening, tokens
from pflego.deploy.gateway.opening import furnished, opened
from pflego.errors import FolderError, SettingError
from tests.support.processes import NGINX

SHAPE = (8,)
GRAPHS = Graphs(b"forward", b"backward", None, None, 0.0)  # nobody runs them here


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """An app whose gateway finds all that it needs."""
    page = tmp_path / "page"
    (page / "runtime").mkdir(parents=True)
    for name in (*opening.RUNTIME, "../index.html"):
        (page / "runtime" / name).write_text("x")
    monkeypatch.setattr(opening, "PAGE", page)
    monkeypatch.setattr(opening, "_GOODBYE", 0.0)
    tokens.give(tmp_path / "tokens.json", "ann")
    kit(tmp_path, pflego.PFLEGO(steps=5))
    return {
        "steps": 5, "seed": 5, "out": str(tmp_path / "out"), "gateway_port": 8001,
        "gateway_kit": str(tmp_path / "kit"), "gateway_tokens": str(tmp_path / "tokens.json"),
    }  # fmt: skip


def kit(folder: Path, algorithm: pflego.Algorithm) -> None:
    model = pflego.models.build("mlp", SHAPE, seed=5)
    write_kit(folder / "kit", model, algorithm, torch.zeros(4, *SHAPE), seed=5, graphs=GRAPHS)


def test_there_is_none_unless_it_is_asked_for() -> None:
    assert Deployment().gateway.port == 0
    assert Deployment().gateway.host == "127.0.0.1"


def test_visitors_are_told_what_concerns_them(app: dict[str, object]) -> None:
    house = furnished(AppConfig.read(app), app)
    assert house.config == {"steps": 5, "seed": 5}  # no path of the server's machine
    assert {"/kit/spec.json", "/kit/forward.onnx", "/kit/backward.onnx"} == house.kit.keys()
    assert "/index.html" in house.page


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 6},
        {"seed": 6},
        {"common_head": True},
        {"algorithm": "fedavg", "client_lr": 0.1},
        {"privacy": "clip=1,noise=1", "classes": "0-4"},
        {"compression": "quantise:8"},
        {"secure": True, "secure_clip": 10.0},
    ],
)
def test_a_run_that_the_kit_is_not_for_is_refused(changed: dict[str, object], app: dict[str, object]) -> None:
    given = {**app, **changed}
    with pytest.raises(SettingError):
        furnished(AppConfig.read(given), given)


def test_a_kit_with_other_frozen_weights_is_refused(app: dict[str, object], tmp_path: Path) -> None:
    given = {**app, "model.frozen": "all"}
    with pytest.raises(SettingError):
        furnished(AppConfig.read(given), given)
    model = pflego.models.build("mlp", SHAPE, seed=5, frozen="all")
    algorithm = pflego.PFLEGO(steps=5)
    write_kit(tmp_path / "kit", model, algorithm, torch.zeros(4, *SHAPE), seed=5, graphs=GRAPHS)
    furnished(AppConfig.read(given), given)


def test_a_kit_of_another_method_is_refused(app: dict[str, object], tmp_path: Path) -> None:
    kit(tmp_path, pflego.FedAvg(steps=5, client_lr=0.1))
    given = {**app, "algorithm": "fedavg", "client_lr": 0.1}
    with pytest.raises(SettingError):
        furnished(AppConfig.read(given), given)


@pytest.mark.parametrize(
    "missing", ["kit/spec.json", "kit/backward.onnx", "tokens.json", "page/runtime/ort.wasm.min.mjs"]
)
def test_what_is_missing_is_named(missing: str, app: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / missing).unlink()
    with pytest.raises(FolderError):
        furnished(AppConfig.read(app), app)


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        [],
        {"format": "other"},
        {"format": "pflego kit 2", "files": {}},
        {"format": "pflego kit 2", "files": []},
        {"format": "pflego kit 2", "files": {"forward": {"name": "spec.txt"}}},
        {"format": "pflego kit 2", "files": {}, "settings": {}, "inputs": {}, "method": {"name": "pflego"}},
    ],
)
def test_a_damaged_kit_is_refused(damaged: object, app: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "kit" / "spec.json").write_text(json.dumps(damaged))
    with pytest.raises(FolderError):
        furnished(AppConfig.read(app), app)


def test_a_port_that_is_taken_is_said(app: dict[str, object]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = {**app, "gateway_port": taken.getsockname()[1]}
        with pytest.raises(SettingError), opened(AppConfig.read(given), given):
            pass


def test_an_address_of_sixteen_bytes_stands_in_brackets(app: dict[str, object]) -> None:
    if not socket.has_ipv6:
        pytest.skip("needs IPv6")
    with socket.socket(socket.AF_INET6) as free:
        free.bind(("::1", 0))
        port = free.getsockname()[1]
    given = {**app, "gateway_host": "::1", "gateway_port": port}
    with opened(AppConfig.read(given), given) as gateway:
        assert gateway.address == f"http://[::1]:{port}/"


def test_the_proxy_lets_browsers_in_where_there_is_a_gateway(app: dict[str, object], tmp_path: Path) -> None:
    write_app(tmp_path / "with", app)
    write_app(tmp_path / "without", {"steps": 5})
    assert "proxy_pass http://127.0.0.1:8001/;" in (tmp_path / "with" / "nginx.conf").read_text()
    assert "location /visit/" not in (tmp_path / "without" / "nginx.conf").read_text()


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("10.0.0.7", "10.0.0.7"),
        ("::1", "[::1]"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("", "127.0.0.1"),
    ],
)
def test_the_proxy_goes_where_the_gateway_is_and_lets_through_what_it_takes(
    host: str, found: str, tmp_path: Path
) -> None:
    write_app(tmp_path / "app", {"gateway_port": 8001, "gateway_host": host, "gateway_limit": 200_000_000})
    visit = (tmp_path / "app" / "nginx.conf").read_text().partition("location /visit/")[2]
    assert f"proxy_pass http://{found}:8001/;" in visit
    assert "client_max_body_size 200000000;" in visit
    if NGINX.exists():
        write_certificates(tmp_path / "certs", ["server.example.org"])
        config = tmp_path / "app" / "nginx.conf"
        told = subprocess.run(
            [NGINX, "-t", "-p", tmp_path, "-c", config],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert told.returncode == 0, told.stderr


def test_a_host_that_would_be_more_than_one_in_nginx_conf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="gateway_host"):
        write_app(tmp_path / "app", {"gateway_port": 8001, "gateway_host": "a; deny all"})
    assert not (tmp_path / "app").exists()
