"""Personalised federated learning by exact stochastic gradient descent.

    import pflego

    federation = pflego.load("digits", clients=20, classes_per_client=2, seed=0)
    model = pflego.models.build("mlp", (64,))
    run = pflego.train(federation, model, pflego.PFLEGO(steps=50), rounds=50, participation=pflego.Fixed(5))
    print(run.history[-1])

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pflego import cost as cost
    from pflego import joining as joining
    from pflego import models as models
    from pflego import theory as theory
    from pflego import trackers as trackers
    from pflego import tuning as tuning
    from pflego.advice import Advice as Advice
    from pflego.advice import advise as advise
    from pflego.algorithms import PFLEGO as PFLEGO
    from pflego.algorithms import Algorithm as Algorithm
    from pflego.algorithms import Ditto as Ditto
    from pflego.algorithms import FedAvg as FedAvg
    from pflego.algorithms import FedBabu as FedBabu
    from pflego.algorithms import FedPer as FedPer
    from pflego.algorithms import FedProx as FedProx
    from pflego.algorithms import FedRecon as FedRecon
    from pflego.algorithms import FedRep as FedRep
    from pflego.algorithms import Local as Local
    from pflego.algorithms import Reply as Reply
    from pflego.algorithms import Round as Round
    from pflego.algorithms import Update as Update
    from pflego.callbacks import Callback as Callback
    from pflego.data import load as load
    from pflego.errors import FolderError as FolderError
    from pflego.errors import UserError as UserError
    from pflego.experiment import open_run as open_run
    from pflego.export import load_model as load_model
    from pflego.federation import Client as Client
    from pflego.federation import Federation as Federation
    from pflego.model import Model as Model
    from pflego.participation import Between as Between
    from pflego.participation import Binomial as Binomial
    from pflego.participation import Everyone as Everyone
    from pflego.participation import Fixed as Fixed
    from pflego.replies import Speed as Speed
    from pflego.run import Run as Run
    from pflego.task import Classification as Classification
    from pflego.task import Regression as Regression
    from pflego.training import train as train

_HOMES = {
    "pflego.advice": ["Advice", "advise"],
    "pflego.algorithms": [
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
    ],
    "pflego.callbacks": ["Callback"],
    "pflego.data": ["load"],
    "pflego.errors": ["FolderError", "UserError"],
    "pflego.experiment": ["open_run"],
    "pflego.export": ["load_model"],
    "pflego.federation": ["Client", "Federation"],
    "pflego.model": ["Model"],
    "pflego.participation": ["Between", "Binomial", "Everyone", "Fixed"],
    "pflego.replies": ["Speed"],
    "pflego.run": ["Run"],
    "pflego.task": ["Classification", "Regression"],
    "pflego.training": ["train"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

_MODULES = ["cost", "joining", "models", "theory", "trackers", "tuning"]

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"pflego.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'pflego' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
