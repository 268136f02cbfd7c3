"""What an app and a SuperNode's command line say, read where no Flower is running."""

from __future__ import annotations

from pathlib import Path

from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.site_config import Site
from pflego.deploy.flower.terms import run_config
from pflego.deploy.node_config import read_node_config


def read(app: Path, node_config: str) -> tuple[AppConfig, Site]:
    """Read the folder of an app, and the node config of a site: nothing is imported that it does not allow."""
    config, site = run_config(app), Site.read(read_node_config(node_config))
    site.assignment(config)
    return AppConfig.read(config), site
