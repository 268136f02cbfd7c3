"""An experiment from plain settings: the same names on the command line, in TOML files and in a run's record."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from pflego import device as devices
from pflego import models, trackers
from pflego.algorithms import ALGORITHMS, Algorithm
from pflego.callbacks import Callback
from pflego.checkpoint import RunFolder
from pflego.data import load
from pflego.engines.base import EngineMaker
from pflego.engines.local import LocalEngine
from pflego.errors import FolderError, UserError, unknown
from pflego.federation import Federation
from pflego.history import everybodys
from pflego.joining import JOINED, with_joined
from pflego.model import Model
from pflego.participation import parse
from pflego.problem import Problems, Streaming
from pflego.replies import Speed
from pflego.run import Run
from pflego.settings import RECORD, Settings
from pflego.training import kept_states, train
from pflego.weights import to

T = TypeVar("T")

DEFAULTS: Settings = {
    "data": "digits",
    "algorithm": "pflego",
    "participation": "everyone",
    "rounds": 100,
    "seed": 0,
    "evaluate_every": 10,
    "device": "auto",
}
_KINDS = {
    "data": str, "data_dir": str, "partition": str, "column": str, "split": str,
    "label": str, "task": str, "gaps": str, "schema": str,
    "model": str, "algorithm": str, "device": str, "engine": str, "out": str,
    "seed": int, "data_seed": int, "model_seed": int,
}  # fmt: skip
_WORDS = {str: "a text", int: "a whole number"}
_OF_DATA = [
    "clients", "classes_per_client", "partition", "alpha", "column", "split", "rotations", "data_dir",
    "label", "task", "test_share", "drop", "scale", "gaps", "size", "schema",
]  # fmt: skip
_OF_TRAIN = [
    "dropout", "deadline", "missing", "batch_size", "memory", "checkpoint_every", "states", "engine", "out",
]  # fmt: skip
_SPEED = {"samples_per_second": "samples_per_second", "spread": "speed_spread"}
_OPTIONAL = {*_OF_DATA, *_OF_TRAIN, "model", "data_seed", "model_seed", "track", JOINED, *_SPEED.values()}


def read_settings(path: Path) -> Settings:
    """Read a TOML file of settings, without the record a run adds to its own."""
    try:
        settings = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    settings.pop(RECORD, None)
    return settings


def command(settings: Mapping[str, object]) -> str:
    """Spell settings as a command.

    >>> command({"data": "patients.csv", "drop": ["id", "name"], "scale": False, "client_lr": "auto"})
    'pflego run --data patients.csv --drop id --drop name --no-scale --client-lr auto'
    """
    words = ["pflego", "run"]
    for name, value in settings.items():
        option = name.replace("_", "-")
        match value:
            case bool():
                words.append(f"--{option}" if value else f"--no-{option}")
            case list():
                words += [word for one in value for word in (f"--{option}", str(one))]
            case _:
                words += [f"--{option}", str(value)]
    return shlex.join(words)


@dataclass(frozen=True)
class Experiment:
    """A federation, a model and a method, ready to train."""

    settings: Settings
    federation: Federation
    model: Model
    algorithm: Algorithm

    @classmethod
    def build(cls, given: Mapping[str, object], *, federation: Federation | None = None) -> Experiment:
        """Fill in what is not given, refuse what is not known, and make the parts.

        A federation that was built from the same settings before need not be loaded again.
        """
        algorithm = check(given)
        settings: dict[str, Any] = {**DEFAULTS, **given}
        federation = federation or load_data(settings)
        settings.setdefault("clients", federation.source.get("clients", len(federation)))
        settings.setdefault("model", models.usual(settings["data"]))
        shape = tuple(federation[0].x_train.shape[1:])
        model = models.build(settings["model"], shape, seed=settings.get("model_seed", settings["seed"]))
        return cls(settings, federation, model, algorithm)

    def train(
        self,
        *,
        resume: bool = False,
        engine: EngineMaker | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
    ) -> Run:
        """Train it; an engine that is given takes the place of the one in the settings."""
        settings: dict[str, Any] = dict(self.settings)
        if engine is not None:
            settings["engine"] = engine
        return train(
            self.federation,
            self.model,
            self.algorithm,
            rounds=settings["rounds"],
            participation=parse(settings["participation"]),
            seed=settings["seed"],
            evaluate_every=settings["evaluate_every"],
            device=settings["device"],
            speed=Speed(**{key: settings[name] for key, name in _SPEED.items() if name in settings}),
            **{name: settings[name] for name in _OF_TRAIN if name in settings},
            resume=resume,
            callbacks=[*self._trackers(resume), *callbacks],
            progress=progress,
        )

    def _trackers(self, resume: bool) -> list[trackers.Tracker]:
        """Those of the settings; where they name none, a run that goes on keeps the logs it has."""
        out = self.settings.get("out")
        kept = trackers.begun(Path(str(out))) if resume and out is not None else []
        return trackers.choose(self.settings.get("track", kept))


def open_run(
    folder: str | Path,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    algorithm: Algorithm | None = None,
    device: str = "auto",
) -> Run:
    """Open a run's folder again: its weights, states and history, as after its last checkpoint.

    Federation, model and method are made again from the run's settings; one that was made in Python and has no name
    there must be given. Nothing in the folder is changed. Of a run on Flower, in its server's folder, there are the
    shared weights, history and figures; data and heads are with the clients.
    """
    files = RunFolder(Path(folder))
    if not files.exists:
        raise FolderError(f"{folder} holds no run")
    settings: dict[str, Any] = files.settings()
    made_with = settings.pop(RECORD, {})
    begin = files.load()
    if begin is None:
        raise FolderError(f"{folder} holds a run without a checkpoint yet: go on with pflego run --resume")
    if federation is None and (remote := _of_server(files.path)) is not None:
        federation, shape = remote
    else:
        federation = federation or _again(
            "federation", lambda: load_data({"data": settings["data"], **settings})
        )
        shape = tuple(federation[0].x_train.shape[1:])
    model = model or _again(
        "model", lambda: models.build(settings["model"], shape, seed=settings.get("model_seed", 0))
    )
    algorithm = algorithm or _again("algorithm", lambda: _algorithm(settings))
    for what, ours in [("federation", federation.fingerprint()), ("model", model.fingerprint())]:
        if made_with.get(what) != ours:
            raise FolderError(
                f"{folder} was made with another {what}: its data or first weights have changed"
            )
    place = devices.resolve(device, model.dtype)
    streaming = Streaming(settings.get("batch_size"), settings.get("memory", "keep"))
    problems = Problems(federation, model.to(place), place, streaming, algorithm.label_space)
    states = kept_states(federation, model, algorithm, settings["seed"], begin)
    return Run(
        problems=problems,
        algorithm=algorithm,
        shared=to(begin.shared, place),
        states=states,
        settings={**settings, RECORD: made_with},
        engine=LocalEngine(problems, algorithm, states),
        history=begin.history,
        evaluations=everybodys(begin.evaluations, len(federation)),
        folder=files.path,
    )


def _of_server(folder: Path) -> tuple[Federation, tuple[int, ...]] | None:
    """The clients of a run on Flower, in its server's folder, and the shape of their samples."""
    if not (folder / "federation.json").exists():
        return None
    try:
        from pflego.engines.flower.members import Members
    except ModuleNotFoundError as error:
        raise UserError(f"{folder} is a run on Flower; to open it: pip install 'pflego[flower]'") from error
    members = Members.load(folder)
    return None if members is None else (members.federation(), members.shape)


def _again(what: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except (UserError, KeyError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise UserError(
            f"the run's {what} cannot be made again from its settings ({why}); "
            f"if it was made in Python, open the run there: pflego.open_run(folder, {what}=...)"
        ) from error


def load_data(given: Mapping[str, object]) -> Federation:
    """Load the federation of some settings, with those who joined it."""
    settings: dict[str, Any] = {**DEFAULTS, **given}
    federation = load(
        settings["data"],
        seed=settings.get("data_seed", settings["seed"]),
        **{name: settings[name] for name in _OF_DATA if name in settings},
    )
    return with_joined(federation, settings.get(JOINED, []))


def check(given: Mapping[str, object]) -> Algorithm:
    """Refuse settings of the wrong kind or of no known name; give the method they name."""
    settings: dict[str, Any] = {**DEFAULTS, **given}
    for name, kind in _KINDS.items():
        if name in settings and type(settings[name]) is not kind:
            raise UserError(f"{name} must be {_WORDS[kind]}, not {settings[name]!r}")
    trackers.choose(settings.get("track", []))
    algorithm = _algorithm(settings)
    known = {*DEFAULTS, *_OPTIONAL, *(field.name for field in fields(algorithm))}
    for name in settings.keys() - known:
        raise _unknown_setting(name, algorithm, known)
    return algorithm


def _algorithm(settings: Mapping[str, Any]) -> Algorithm:
    """The method that settings name, with those of them that are its own."""
    if (method := settings["algorithm"].lower()) not in ALGORITHMS:
        raise unknown("algorithm", method, ALGORITHMS)
    own = {field.name for field in fields(ALGORITHMS[method])}
    return ALGORITHMS[method](**{key: value for key, value in settings.items() if key in own})


def _unknown_setting(name: str, algorithm: Algorithm, known: set[str]) -> UserError:
    elsewhere = [kind for kind in ALGORITHMS.values() if name in {field.name for field in fields(kind)}]
    if elsewhere:
        own = ", ".join(sorted(field.name for field in fields(algorithm)))
        return UserError(f"{algorithm.name} has no setting {name!r}; its own are {own}")
    return unknown("setting", name, known)
