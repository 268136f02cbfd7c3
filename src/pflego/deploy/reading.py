"""What an app and a SuperNode's command line say, read where no Flower is running."""

from __future__ import annotations

import tomllib
from pathlib import Path

import click
from flwr.common.config import flatten_dict, parse_config_args

from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.site_config import Site
from pflego.errors import SettingError


def read(app: Path, node_config: str) -> tuple[AppConfig, Site]:
    """Read the folder of an app, and the node config of a site."""
    return AppConfig.read(_run_config(app)), Site.read(_node_config(node_config))


def _run_config(app: Path) -> dict[str, object]:
    path = app / "pyproject.toml"
    try:
        settings = tomllib.loads(path.read_text())
        return dict(flatten_dict(settings["tool"]["flwr"]["app"].get("config", {})))
    except OSError as error:
        raise SettingError(
            f"{app} is no folder of a Flower app: cannot read {path}: {error.strerror}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{path} is not that of a Flower app: {error}") from error


def _node_config(text: str) -> dict[str, bool | float | int | str]:
    try:
        return parse_config_args([text])
    except (click.ClickException, ValueError) as error:
        raise SettingError(
            f"cannot read the node config {text!r}: write name=value pairs with texts in quotes, "
            f'\'client-id="ward-3" data="own.npz" state="state"\''
        ) from error
