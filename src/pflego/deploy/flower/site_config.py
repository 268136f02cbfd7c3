"""What a site was told: by the operator of its SuperNode, in the node config, and by the app, in the run config.

Both are flat tables of numbers, words and texts. Names are those of settings files; a dash does as well as an
underscore. A site takes from the run config what its own work depends on, and leaves the rest to the server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pflego import models
from pflego.algorithms.base import Algorithm
from pflego.algorithms.registry import find_method, spelling
from pflego.data import load
from pflego.data.schema import Schema
from pflego.declaration import arguments, declared
from pflego.deploy.flower.facts import Facts, check_id, classes_in
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.flower.terms import Terms
from pflego.errors import SettingError, unknown
from pflego.exchange.compression import Compression, compression_of
from pflego.exchange.privacy import ClientPrivacy, privacy_of
from pflego.federation.roster import Client, ClientId
from pflego.learning.model import Model
from pflego.learning.streaming import Streaming

_TRIAL = {  # how a data set that sites only pretend to have of their own is divided
    "clients", "classes_per_client", "partition", "alpha", "column", "split", "rotations", "data_dir",
}  # fmt: skip
_FILES = {"schema", "test_share", "gaps"}  # how a site reads files of its own


@dataclass(frozen=True)
class Assignment:
    """What the run config asks of a site: method, backbone, and how samples go through it."""

    algorithm: Algorithm
    model_name: str
    model_seed: int
    model_options: Mapping[str, object]  # those of `models.build`
    seed: int
    streaming: Streaming
    privacy: ClientPrivacy | None = None
    classes: frozenset[int] = frozenset()  # that there are, where the app names them
    secure: SecureSum = SecureSum()
    compression: Compression | None = None  # of what it sends

    @classmethod
    def read(cls, config: Mapping[str, object], *, allowed: Collection[str] | None = None) -> Assignment:
        """Take what a site's work depends on.

        allowed: names of methods and models outside of pflego that may be imported; None: any.
        """
        given = as_python(config)
        for what in ("algorithm", "model"):
            name = str(given.get(what, ""))
            if allowed is not None and ":" in name and name not in allowed:
                raise SettingError(
                    f"{what} {name!r} is not part of pflego, and this site's operator has not allowed it: "
                    f'allow="{name}" in the node config does'
                )
        kind = find_method(str(given.get("algorithm", "pflego")))
        elsewhere = {
            "seed",
            "model",
            "model_seed",
            "algorithm",
            *declared(models.build),
            *declared(Streaming),
        }
        own = {name: value for name, value in given.items() if name not in elsewhere}
        own |= {n.removeprefix("method."): value for n, value in given.items() if n.startswith("method.")}
        seed = given.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise SettingError(f"seed must be a whole number, not {seed!r}")
        privacy, algorithm = privacy_of(given.get("privacy")), kind(**arguments(kind, own))
        secure = SecureSum(**arguments(SecureSum, given)).under(privacy)
        secure.check_method(algorithm)
        return cls(
            algorithm,
            model_name=str(given.get("model", models.usual(""))),
            model_seed=int(str(given.get("model_seed", seed))),
            model_options=arguments(models.build, given),
            seed=seed,
            streaming=Streaming(**arguments(Streaming, given)),
            privacy=privacy,
            classes=classes_in(str(given.get("classes", ""))),
            secure=secure,
            compression=compression_of(given.get("compression")),
        )

    def facts(self, client: Client, schema: Schema | None) -> Facts:
        """Say of a client what may be said of it."""
        return Facts.of(client, schema, None if self.privacy is None else self.classes)

    def model(self, shape: tuple[int, ...]) -> Model:
        """Build the backbone that everybody begins with, for samples of a shape."""
        options = arguments(models.build, self.model_options)
        return models.build(self.model_name, shape, **{**options, "seed": self.model_seed})

    def settings(self) -> dict[str, object]:
        """Map name to value for all that was asked for."""
        return {
            "algorithm": spelling(type(self.algorithm)),
            **self.algorithm.settings(),
            "model": self.model_name,
            "model_seed": self.model_seed,
            **self.model_options,
            "seed": self.seed,
            **asdict(self.streaming),
            "privacy": None if self.privacy is None else str(self.privacy),
            **self.secure.settings(),
            "compression": None if self.compression is None else str(self.compression),
        }


@dataclass(frozen=True)
class Site:
    """What the node config of a SuperNode says: whose data these are, where they lie, where the state is kept."""

    id: ClientId
    data: str
    state: Path
    device: str
    options: Mapping[str, object]  # how the data are read
    terms: Terms  # what its operator agrees to
    data_seed: int = 0
    pretrained: str | None = None  # where this site has the weights that the backbone begins with

    @classmethod
    def read(cls, config: Mapping[str, object]) -> Site:
        """Check a node config."""
        given = as_python(config)
        known = {"client_id", "data", "state", "device", "data_seed", "pretrained", *declared(Terms)}
        for name in given.keys() - known - _TRIAL - _FILES:
            raise unknown("node setting", name, known | _TRIAL | _FILES)
        for name in ("client_id", "data", "state"):
            if name not in given:
                raise SettingError(
                    f"the node config has no {name}: start the SuperNode with "
                    f'--node-config \'client-id="..." data="..." state="..."\''
                )
        client = given["client_id"]
        if isinstance(client, bool) or not isinstance(client, str | int):
            raise SettingError(f"client-id must be a text or a whole number, not {client!r}")
        for name, one in declared(load).items():
            if name in given:
                one.check(given[name])
        return cls(
            check_id(client),
            data=str(given["data"]),
            state=Path(str(given["state"])).expanduser(),
            device=str(given.get("device", "auto")),
            options={name: value for name, value in given.items() if name in _TRIAL | _FILES},
            data_seed=int(str(given.get("data_seed", 0))),
            terms=Terms(**arguments(Terms, given)),
            pretrained=str(Path(str(own)).expanduser()) if (own := given.get("pretrained")) else None,
        )

    def assignment(self, config: Mapping[str, object]) -> Assignment:
        """Take what a run config asks of this site, if its operator has agreed to it."""
        asked = Assignment.read(config, allowed=self.terms.allowed)
        if (accepted := self.terms.accepted) is not None:
            theirs, ours = asked.settings(), Assignment.read(accepted, allowed=self.terms.allowed).settings()
            for name in theirs | ours:
                if (said := theirs.get(name)) != (agreed := ours.get(name)):
                    raise SettingError(
                        f"the server asks for {name} = {said!r}, and this site's operator accepted {agreed!r}"
                    )
        return self.at_home(asked)

    def at_home(self, asked: Assignment) -> Assignment:
        """Give an assignment with the place where this site has a backbone's first weights, if it has one."""
        if self.pretrained is None:
            return asked
        return replace(asked, model_options={**asked.model_options, "pretrained": self.pretrained})

    def data_and_schema(self) -> tuple[Client, Schema | None]:
        """Read this site's data, and how its values became tensors, where they had to.

        They are files of its own, or its part of a data set that is divided for a trial.
        """
        from pflego.data.own import is_own
        from pflego.data.sets import data_set

        path, options = Path(self.data).expanduser(), arguments(load, self.options)
        if is_own(self.data) and not self.options.keys() & _TRIAL:
            if "schema" not in options:
                raise SettingError(
                    f"{path} needs a schema, so that all sites read values in the same way: make one with "
                    f'pflego data schema, give it to every site, and name it: schema="..."'
                )
            federation = load(path, seed=self.data_seed, **options)
            one = federation[0] if len(federation) == 1 else federation.client(self.id)
            parts = (one.x_train, one.y_train, one.x_test, one.y_test)
            return Client(self.id, *parts, weights=one.weights), federation.schema
        if path.suffix == ".npz" and not options:
            whole = data_set(str(path))
            return Client(self.id, whole.x_train, whole.y_train, whole.x_test, whole.y_test), None
        federation = load(self.data, seed=self.data_seed, **options)
        return federation.client(self.id), federation.schema


def as_python(config: Mapping[str, object]) -> dict[str, object]:
    """Give a config's entries by the names of settings, as Python spells them.

    >>> as_python({"client-lr": 0.1, "method.steps": 5, "run.rounds": 3, "method.name": "fedavg"})
    {'client_lr': 0.1, 'method.steps': 5, 'rounds': 3, 'algorithm': 'fedavg'}
    """
    titles = {
        "data.name": "data",
        "data.seed": "data_seed",
        "model.name": "model",
        "model.seed": "model_seed",
    }
    titles["method.name"] = "algorithm"
    python = {name.replace("-", "_"): value for name, value in config.items()}
    return {
        titles.get(name, name.removeprefix("run.").removeprefix("data.").removeprefix("model.")): value
        for name, value in python.items()
    }
