"""A site without torch: pflego-light, a distribution of its own, takes the place of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from pflego.errors import MissingExtraError


def become_light(kit: Path, options: Mapping[str, object]) -> NoReturn:
    """Take part with a kit: nothing of pflego stays in memory."""
    if find_spec("pflego_light") is None:
        raise MissingExtraError("for a site without torch: pip install 'pflego-light[flower]'")
    words = [str(word) for option in options.items() for word in option]
    os.execv(sys.executable, [sys.executable, "-m", "pflego_light", "site", str(kit), *words])
