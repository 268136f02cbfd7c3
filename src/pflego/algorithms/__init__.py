"""The methods, by the names of settings files and the command line."""

from pflego.algorithms.base import Algorithm, Reply, Round, Update
from pflego.algorithms.ditto import Ditto
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.fedbabu import FedBabu
from pflego.algorithms.fedper import FedPer
from pflego.algorithms.fedprox import FedProx
from pflego.algorithms.fedrecon import FedRecon
from pflego.algorithms.fedrep import FedRep
from pflego.algorithms.local import Local
from pflego.algorithms.pflego import PFLEGO

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.__name__.lower(): kind
    for kind in (PFLEGO, FedAvg, FedProx, FedPer, FedRep, FedBabu, Ditto, FedRecon, Local)
}

__all__ = [
    "ALGORITHMS",
    "PFLEGO",
    "Algorithm",
    "Ditto",
    "FedAvg",
    "FedBabu",
    "FedPer",
    "FedProx",
    "FedRecon",
    "FedRep",
    "Local",
    "Reply",
    "Round",
    "Update",
]
