"""The methods, by the names of settings files and the command line."""

from pflego.algorithms.base import Algorithm, Reply, Round, Update
from pflego.algorithms.local import Local
from pflego.algorithms.pflego import PFLEGO

ALGORITHMS: dict[str, type[Algorithm]] = {kind.__name__.lower(): kind for kind in (PFLEGO, Local)}

__all__ = ["ALGORITHMS", "PFLEGO", "Algorithm", "Local", "Reply", "Round", "Update"]
