"""What an app and a SuperNode's command line say, read where no Flower is running."""

from __future__ import annotations

from pathlib import Path

import click
from flwr.common.config import parse_config_args

from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.site_config import Site
from pflego.deploy.flower.terms import run_config
from pflego.errors import SettingError


def read(app: Path, node_config: str) -> tuple[AppConfig, Site]:
    """Read the folder of an app, and the node config of a site: nothing is imported that it does not allow."""
    config, site = run_config(app), Site.read(read_node_config(node_config))
    site.assignment(config)
    return AppConfig.read(config), site


def read_node_config(text: str) -> dict[str, bool | float | int | str]:
    """Read the node config as it stands on a SuperNode's command line."""
    try:
        return parse_config_args([text])
    except (click.ClickException, ValueError) as error:
        raise SettingError(
            f"cannot read the node config {text!r}: write name=value pairs with texts in quotes, "
            f'\'client-id="ward-3" data="own.npz" state="state"\''
        ) from error
