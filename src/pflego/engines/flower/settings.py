"""What the server and its clients were told: a Flower app's run config, and a SuperNode's node config.

Both are flat tables of numbers, words and texts. Names are those of settings files, and those below; a dash does as
well as an underscore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from flwr.app import UserConfig

from pflego import models
from pflego.algorithms.base import Algorithm
from pflego.data.schema import Schema
from pflego.engines.flower.facts import check_id
from pflego.errors import UserError, check_positive, unknown
from pflego.experiment import DEFAULTS, check
from pflego.federation import Client, ClientId
from pflego.model import Model
from pflego.problem import Streaming
from pflego.settings import Settings

_TRAINING = {
    "algorithm", "rounds", "participation", "missing", "seed", "evaluate_every", "batch_size", "memory",
    "device", "model", "model_seed", "out", "track",
}  # fmt: skip
_OF_TRIALS = {  # how a data set that sites only pretend to have of their own is divided
    "clients", "classes_per_client", "partition", "alpha", "column", "split", "rotations", "data_dir",
}  # fmt: skip
_OF_FILES = {"schema", "test_share", "gaps"}
_OF_DATA = {*_OF_TRIALS, *_OF_FILES, "data_seed"}


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How the server deals with real clients.

    Parameters
    ----------
    clients
        The ids of those who make up the federation, separated by commas. Without it: all that are there once
        `min_clients` are.
    min_clients
        How many clients a federation needs before it begins.
    wait
        Seconds the server waits at the start for everybody. A new run then gives up; a resumed one goes on with
        those who are there.
    deadline
        Seconds the server waits for replies in a round.
    max_norm
        The largest Euclidean norm of a reply, all tensors together; 0: no limit of this kind.
    norm_factor
        A reply whose norm is above so many times the median of the round, and so many times that of the shared
        weights, is dropped.
    pin_keys
        A client's id belongs to the node key that first claimed it. Off only for trials without node keys.
    """

    clients: str = ""
    min_clients: int = 2
    wait: float = 600.0
    deadline: float = 600.0
    max_norm: float = 0.0
    norm_factor: float = 1000.0
    pin_keys: bool = True

    def __post_init__(self) -> None:
        check_positive("min_clients", self.min_clients, whole=True)
        for name in ("wait", "deadline", "norm_factor"):
            check_positive(name, getattr(self, name))
        if self.max_norm != 0:
            check_positive("max_norm", self.max_norm)
        if not isinstance(self.pin_keys, bool):
            raise UserError(f"pin_keys must be true or false, not {self.pin_keys!r}")

    @property
    def names(self) -> list[str]:
        """The ids of `clients`."""
        return [name for part in str(self.clients).split(",") if (name := part.strip())]


@dataclass(frozen=True)
class Plan:
    """What the run config of a Flower app asks for."""

    settings: Settings  # as of a settings file, defaults filled in
    algorithm: Algorithm
    deployment: Deployment

    @classmethod
    def read(cls, config: Mapping[str, object]) -> Plan:
        """Check a run config."""
        given = _plain(config)
        own = {field.name for field in fields(Deployment)}
        deployment = Deployment(**{name: value for name, value in given.items() if name in own})  # type: ignore[arg-type]
        settings: Settings = {name: value for name, value in given.items() if name not in own}
        known = {*_TRAINING, *own}
        for name in settings.keys() - known:
            if name in _OF_DATA or name == "data":
                raise UserError(
                    f"{name} is a site's own business: say it in the node config of its SuperNode"
                )
        algorithm = check(settings)
        known |= {field.name for field in fields(algorithm)}
        for name in settings.keys() - known:
            raise unknown("setting", name, known)
        settings = {**{name: DEFAULTS[name] for name in DEFAULTS if name != "data"}, **settings}
        settings.setdefault("model", models.usual(""))
        settings.setdefault("out", "runs/federation")
        return cls(settings, algorithm, deployment)

    @property
    def seed(self) -> int:
        """Decides every random draw."""
        return int(str(self.settings["seed"]))

    @property
    def out(self) -> Path:
        """The server's folder for settings, history and checkpoints."""
        return Path(str(self.settings["out"])).expanduser()

    @property
    def streaming(self) -> Streaming:
        """How samples go through the backbone."""
        names = ("batch_size", "memory")
        return Streaming(**{name: self.settings[name] for name in names if name in self.settings})  # type: ignore[arg-type]

    def model(self, shape: tuple[int, ...]) -> Model:
        """The backbone that everybody begins with, for samples of a shape."""
        seed = self.settings.get("model_seed", self.seed)
        return models.build(str(self.settings["model"]), shape, seed=int(str(seed)))


@dataclass(frozen=True)
class Site:
    """What the node config of a SuperNode says: whose data these are, where they lie, where the state is kept."""

    id: ClientId
    data: str
    state: Path
    device: str
    options: Mapping[str, object]  # how the data are read

    @classmethod
    def read(cls, config: UserConfig) -> Site:
        """Check a node config."""
        given = _plain(config)
        own = {"client_id", "data", "state", "device"}
        for name in given.keys() - own - _OF_DATA:
            raise unknown("node setting", name, own | _OF_DATA)
        for name in ("client_id", "data", "state"):
            if name not in given:
                raise UserError(
                    f"the node config has no {name}: start the SuperNode with "
                    f'--node-config \'client-id="..." data="..." state="..."\''
                )
        id = given["client_id"]
        if isinstance(id, bool) or not isinstance(id, str | int):
            raise UserError(f"client-id must be a text or a whole number, not {id!r}")
        return cls(
            check_id(id),
            data=str(given["data"]),
            state=Path(str(given["state"])).expanduser(),
            device=str(given.get("device", "auto")),
            options={name: value for name, value in given.items() if name in _OF_DATA},
        )

    def data_and_schema(self) -> tuple[Client, Schema | None]:
        """Read this site's data, and how its values became tensors, where they had to.

        They are files of its own, or its part of a data set that is divided for a trial.
        """
        from pflego.data import load
        from pflego.data.own import is_own
        from pflego.data.sets import data_set

        options = {name: value for name, value in self.options.items() if name != "data_seed"}
        seed = self.options.get("data_seed", 0)
        path = Path(self.data).expanduser()
        if is_own(self.data) and not options.keys() & _OF_TRIALS:
            if "schema" not in options:
                raise UserError(
                    f"{path} needs a schema, so that all sites read values in the same way: make one with "
                    f'pflego data schema, give it to every site, and name it: schema="..."'
                )
            federation = load(path, seed=seed, **options)  # type: ignore[arg-type]
            one = federation[0] if len(federation) == 1 else federation.client(self.id)
            return Client(self.id, one.x_train, one.y_train, one.x_test, one.y_test), federation.schema
        if path.suffix == ".npz" and not options:
            whole = data_set(str(path))
            return Client(self.id, whole.x_train, whole.y_train, whole.x_test, whole.y_test), None
        federation = load(self.data, seed=seed, **options)  # type: ignore[arg-type]
        return federation.client(self.id), federation.schema


def _plain(config: Mapping[str, object]) -> dict[str, object]:
    """Names as Python spells them."""
    return {name.replace("-", "_"): value for name, value in config.items()}
