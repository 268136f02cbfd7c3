"""The folder of a Flower app: small, readable, ready to run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from textwrap import fill

import tomli_w

from pflego.declaration import declared
from pflego.deploy.flower.app_config import AppConfig, Deployment, simulated
from pflego.deploy.gateway.settings import Gateway
from pflego.errors import FolderError, SettingError
from pflego.files import make_folder, write_atomically
from pflego.runs.record import TABLES
from pflego.settings.tables import Settings, known

TEMPLATE = Path(__file__).parent / "app"
LISTEN, PORT = 8443, 8000  # of the proxy, which sites reach, and of the SuperLink, which only the proxy does
BODY = "32m"  # of a request, at most: Flower cuts tensors into pieces of 20 MB
VISIT = """
        # browsers: the gateway's page, and a conversation that asks for a token
        location /visit/ {
            limit_except GET POST {
                deny all;
            }
            client_max_body_size $limit;
            proxy_pass http://$host:$port/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
        }
"""
_HERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # where those who listen everywhere are found
_SHOWN = ["algorithm", "rounds", "participation", "seed", "steps", "client_lr", "server_lr", "missing"]
_SHOWN += ["evaluate_every", "model", "out"]  # what stands in every app; the rest where it was given


def write_app(folder: Path, given: Mapping[str, object]) -> list[Path]:
    """Write a Flower app; give its files. A folder with something in it is left alone."""
    config = AppConfig.read(given)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} is there already, and not empty: choose another folder")
    settings, help_text = config.settings, _help(config.settings)
    own = config.algorithm.settings()
    shown = [name for name in _SHOWN if name in help_text]
    training = {name: own.get(name, settings.value(name)) for name in dict.fromkeys([*shown, *settings.flat])}
    training["participation"] = str(training["participation"])
    if config.population is not None:
        training["population"] = str(config.population)  # its file is not at the sites
    inner = {**config.deployment.secure.settings(), **config.deployment.gateway.settings()}
    deployment = {
        name: inner.get(name, getattr(config.deployment, one.parameter, None))
        for name, one in declared(Deployment).items()
    }
    values = {
        "name": _project_name(folder),
        "folder": folder.resolve().name,
        "training": _lines(training, help_text),
        "deployment": _lines(deployment, {name: one.help for name, one in declared(Deployment).items()}),
        "out": str(settings.value("out")),
        "listen": str(LISTEN),
        "port": str(PORT),
        "body": BODY,
        "visit": _visit(config.deployment.gateway),
    }
    written = []
    for source in sorted(path for path in TEMPLATE.rglob("*") if path.suffix in {".py", ".template"}):
        path = folder / str(source.relative_to(TEMPLATE)).removesuffix(".template")
        make_folder(path.parent)
        write_atomically(path, Template(source.read_text()).substitute(values).encode())
        written.append(path)
    return written


def _visit(gateway: Gateway) -> str:
    """Give nginx's way to a gateway, with its address and its limit; none where there is no gateway."""
    if not gateway.port:
        return ""
    if not re.fullmatch("[A-Za-z0-9.:-]*", gateway.host):
        raise SettingError(f"gateway_host must be an address or a name of this machine, not {gateway.host!r}")
    host = _HERE.get(gateway.host, gateway.host)
    host = f"[{host}]" if ":" in host else host
    return Template(VISIT).substitute(host=host, port=gateway.port, limit=gateway.limit)


def _help(settings: Settings) -> dict[str, str]:
    """Give what every setting of an app is for."""
    tables = {table: known(table, settings.kind if table == "method" else None) for table in TABLES}
    found = {name: one.help for table, own in tables.items() if table != "data" for name, one in own.items()}
    return {name: words for name, words in found.items() if name not in simulated()}


def _lines(settings: Mapping[str, object], help_text: Mapping[str, str]) -> str:
    """Give settings as TOML, each below what it is for."""
    lines = []
    for name, value in settings.items():
        if value is not None:
            value = ", ".join(value) if isinstance(value, list) else value  # Flower's configs hold no lists
            words = fill(help_text.get(name, ""), width=100, initial_indent="# ", subsequent_indent="# ")
            lines += [words, tomli_w.dumps({name: value}).strip()]
    return "\n".join(line for line in lines if line)


def _project_name(folder: Path) -> str:
    """Make a name that Flower takes for an app: letters, digits and dashes."""
    name = re.sub("[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise SettingError(
            f"the app is called like its folder: {folder.resolve().name!r} must begin with a letter"
        )
    return name[:32].rstrip("-")
