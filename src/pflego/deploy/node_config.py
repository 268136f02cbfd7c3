"""The node config of a SuperNode, as it stands on its command line."""

from __future__ import annotations

import click
from flwr.common.config import parse_config_args

from pflego.errors import SettingError


def read_node_config(text: str) -> dict[str, bool | float | int | str]:
    """Read name=value pairs."""
    try:
        return parse_config_args([text])
    except (click.ClickException, ValueError) as error:
        raise SettingError(
            f"cannot read the node config {text!r}: write name=value pairs with texts in quotes, "
            f'\'client-id="ward-3" data="own.npz" state="state"\''
        ) from error
