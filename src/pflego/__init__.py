"""Personalised federated learning by exact stochastic gradient descent.

    import pflego

    federation = pflego.load("digits", clients=20, classes_per_client=2, seed=0)
    model = pflego.models.build("mlp", (64,))
    run = pflego.train(federation, model, pflego.PFLEGO(steps=50), rounds=50, participation=pflego.Fixed(5))
    print(run.history[-1])

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing takes longer to import than all of this, and the command minds Ctrl-C after it
if TYPE_CHECKING:
    from collections.abc import Iterable

    __version__: str
    from pflego import models as models
    from pflego import trackers as trackers
    from pflego import tuning as tuning
    from pflego.advice import Advice as Advice
    from pflego.advice import advise as advise
    from pflego.after import joining as joining
    from pflego.after import neighbours as neighbours
    from pflego.after.export import load_model as load_model
    from pflego.algorithms.apfl import APFL as APFL
    from pflego.algorithms.base import Algorithm as Algorithm
    from pflego.algorithms.ditto import Ditto as Ditto
    from pflego.algorithms.fedala import FedALA as FedALA
    from pflego.algorithms.fedavg import FedAvg as FedAvg
    from pflego.algorithms.fedbabu import FedBabu as FedBabu
    from pflego.algorithms.fedbn import FedBN as FedBN
    from pflego.algorithms.feddane import FedDane as FedDane
    from pflego.algorithms.feddbe import FedDBE as FedDBE
    from pflego.algorithms.feddyn import FedDyn as FedDyn
    from pflego.algorithms.fednova import FedNova as FedNova
    from pflego.algorithms.fedopt import FedOpt as FedOpt
    from pflego.algorithms.fedpac import FedPAC as FedPAC
    from pflego.algorithms.fedper import FedPer as FedPer
    from pflego.algorithms.fedproto import FedProto as FedProto
    from pflego.algorithms.fedprox import FedProx as FedProx
    from pflego.algorithms.fedrecon import FedRecon as FedRecon
    from pflego.algorithms.fedrep import FedRep as FedRep
    from pflego.algorithms.fedrod import FedRoD as FedRoD
    from pflego.algorithms.fedsgd import FedSGD as FedSGD
    from pflego.algorithms.lgfedavg import LGFedAvg as LGFedAvg
    from pflego.algorithms.local import Local as Local
    from pflego.algorithms.moon import MOON as MOON
    from pflego.algorithms.perfedavg import PerFedAvg as PerFedAvg
    from pflego.algorithms.pfedme import PFedMe as PFedMe
    from pflego.algorithms.pflego import PFLEGO as PFLEGO
    from pflego.algorithms.scaffold import Scaffold as Scaffold
    from pflego.algorithms.uga import UGA as UGA
    from pflego.data import load as load
    from pflego.errors import DataError as DataError
    from pflego.errors import FolderError as FolderError
    from pflego.errors import MissingExtraError as MissingExtraError
    from pflego.errors import ModelError as ModelError
    from pflego.errors import SettingError as SettingError
    from pflego.errors import UntrustedError as UntrustedError
    from pflego.errors import UserError as UserError
    from pflego.exchange import liars as liars
    from pflego.exchange import metrics as metrics
    from pflego.exchange.aggregation import Mean as Mean
    from pflego.exchange.compression import Quantise as Quantise
    from pflego.exchange.compression import RandomPart as RandomPart
    from pflego.exchange.compression import Sign as Sign
    from pflego.exchange.compression import Top as Top
    from pflego.exchange.liars import Liars as Liars
    from pflego.exchange.metrics import Metric as Metric
    from pflego.exchange.objective import Agnostic as Agnostic
    from pflego.exchange.objective import CVaR as CVaR
    from pflego.exchange.objective import QFair as QFair
    from pflego.exchange.privacy import ClientPrivacy as ClientPrivacy
    from pflego.exchange.robust import GeometricMedian as GeometricMedian
    from pflego.exchange.robust import Krum as Krum
    from pflego.exchange.robust import Median as Median
    from pflego.exchange.robust import NormBound as NormBound
    from pflego.exchange.robust import TrimmedMean as TrimmedMean
    from pflego.exchange.round import Round as Round
    from pflego.exchange.round import Update as Update
    from pflego.exchange.transforms import Clip as Clip
    from pflego.federation.network import Speed as Speed
    from pflego.federation.participation import Between as Between
    from pflego.federation.participation import Binomial as Binomial
    from pflego.federation.participation import Everyone as Everyone
    from pflego.federation.participation import Fixed as Fixed
    from pflego.federation.population import Population as Population
    from pflego.federation.roster import Client as Client
    from pflego.federation.roster import Federation as Federation
    from pflego.federation.unequal import Daily as Daily
    from pflego.federation.unequal import Estimated as Estimated
    from pflego.federation.unequal import Independent as Independent
    from pflego.learning import theory as theory
    from pflego.learning.model import Model as Model
    from pflego.learning.task import Classification as Classification
    from pflego.learning.task import Regression as Regression
    from pflego.runs import cost as cost
    from pflego.runs.run import Run as Run
    from pflego.runs.sampling import best_sampling as best_sampling
    from pflego.settings.open_run import open_run as open_run
    from pflego.training.callbacks import Callback as Callback
    from pflego.training.train import train as train

# Where names are at home, for when they are first used; methods are found by themselves.
_HOMES = {
    "pflego.advice": ["Advice", "advise"],
    "pflego.after.export": ["load_model"],
    "pflego.algorithms.base": ["Algorithm"],
    "pflego.data": ["load"],
    "pflego.errors": [
        "DataError",
        "FolderError",
        "MissingExtraError",
        "ModelError",
        "SettingError",
        "UntrustedError",
        "UserError",
    ],
    "pflego.exchange.aggregation": ["Mean"],
    "pflego.exchange.compression": ["Quantise", "RandomPart", "Sign", "Top"],
    "pflego.exchange.liars": ["Liars"],
    "pflego.exchange.metrics": ["Metric"],
    "pflego.exchange.objective": ["Agnostic", "CVaR", "QFair"],
    "pflego.exchange.privacy": ["ClientPrivacy"],
    "pflego.exchange.robust": ["GeometricMedian", "Krum", "Median", "NormBound", "TrimmedMean"],
    "pflego.exchange.round": ["Round", "Update"],
    "pflego.exchange.transforms": ["Clip"],
    "pflego.federation.network": ["Speed"],
    "pflego.federation.participation": ["Between", "Binomial", "Everyone", "Fixed"],
    "pflego.federation.population": ["Population"],
    "pflego.federation.roster": ["Client", "Federation"],
    "pflego.federation.unequal": ["Daily", "Estimated", "Independent"],
    "pflego.learning.model": ["Model"],
    "pflego.learning.task": ["Classification", "Regression"],
    "pflego.runs.run": ["Run"],
    "pflego.runs.sampling": ["best_sampling"],
    "pflego.settings.open_run": ["open_run"],
    "pflego.training.callbacks": ["Callback"],
    "pflego.training.train": ["train"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

_MODULES = {
    "cost": "pflego.runs.cost",
    "joining": "pflego.after.joining",
    "liars": "pflego.exchange.liars",
    "metrics": "pflego.exchange.metrics",
    "models": "pflego.models",
    "neighbours": "pflego.after.neighbours",
    "theory": "pflego.learning.theory",
    "trackers": "pflego.trackers",
    "tuning": "pflego.tuning",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "__all__":
        return __dir__()
    if name == "__version__":
        from importlib.metadata import version

        return version("pflego")
    if not name.startswith("_"):
        for kind in _methods():
            if kind.__name__ == name:
                return kind
    raise AttributeError(f"module 'pflego' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOME, *_MODULES, *(kind.__name__ for kind in _methods())])


def _methods() -> Iterable[type]:
    from pflego.algorithms.registry import methods

    return methods().values()
