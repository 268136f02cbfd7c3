"""A server of clients in browsers alone: the round loop in this process, without Flower's server."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event

from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.server import serve
from pflego.deploy.flower.terms import run_config
from pflego.deploy.gateway.opening import opened


def run(app: Path, changes: Mapping[str, object], *, ready: Callable[[str], None]) -> None:
    """Train, or go on training; then stay, for those who come back to the page, until this process is ended.

    changes: settings in the place of the app's. ready: is told the address.
    """
    given = {**run_config(app), **changes}
    config = AppConfig.read(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with opened(config, given) as gateway:
        ready(gateway.address)
        serve(gateway.grid, config)
        gateway.lobby.finish()
        Event().wait()
