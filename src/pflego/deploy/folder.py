"""The folder of a Flower app: small, readable, ready to run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from string import Template

import tomli_w

from pflego.engines.flower.settings import Deployment, Plan
from pflego.errors import FolderError, UserError
from pflego.files import make_folder, write_atomically

TEMPLATE = Path(__file__).parent / "app"
_ALWAYS = ["steps", "client_lr", "server_lr", "missing", "evaluate_every", "model", "out"]
_WORDS = {
    "algorithm": "pflego, fedavg, fedprox, fedper, fedrep, fedbabu, ditto, fedrecon or local",
    "steps": "tau, local steps a round",
    "client_lr": "beta, the rate of the local steps",
    "server_lr": "rho, the rate of the joint step",
    "participation": "who is asked in a round: everyone, a number, binomial:0.2 or between:4-28",
    "rounds": "T; more of them later go on where the run stopped",
    "missing": "replies that do not arrive: zero, or renormalise the weights of the others",
    "seed": "decides every random draw",
    "evaluate_every": "rounds between evaluations of everyone; each costs a message to all",
    "model": "the backbone: mlp, cifar-cnn, omniglot-conv4, or module:function in this folder",
    "out": "the server's folder for history and checkpoints, from where flower-superlink was started",
    "clients": "their ids, separated by commas; empty: all that are there once there are min_clients",
    "min_clients": "how many clients a federation needs before it begins",
    "wait": "seconds to wait at the start for everybody",
    "deadline": "seconds to wait for replies in a round",
    "max_norm": "the largest norm of a reply; 0: no limit of this kind",
    "norm_factor": "and at most so many times the median of the round, or the norm of the shared weights",
    "pin_keys": "a client's id belongs to the node key that first claimed it",
}


def write_app(folder: Path, given: Mapping[str, object]) -> list[Path]:
    """Write a Flower app; give its files. A folder with something in it is left alone."""
    plan = Plan.read(given)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} is there already, and not empty: choose another folder")
    own = {field.name for field in fields(plan.algorithm)}
    settings = {**plan.settings, **{name: getattr(plan.algorithm, name) for name in own & {*_ALWAYS}}}
    shown = ["algorithm", "rounds", "participation", "seed", *_ALWAYS]
    settings.setdefault("missing", "zero")
    training = {name: settings[name] for name in shown if name in settings}
    asked_for = {name.replace("-", "_") for name in given}
    training |= {n: value for n, value in settings.items() if n in asked_for and n not in training}
    deployment = {field.name: getattr(plan.deployment, field.name) for field in fields(Deployment)}
    values = {
        "name": _project_name(folder),
        "folder": folder.resolve().name,
        "training": _lines(training),
        "deployment": _lines(deployment),
        "out": str(settings["out"]),
    }
    written = []
    for source in sorted(path for path in TEMPLATE.rglob("*") if path.suffix in {".py", ".template"}):
        path = folder / str(source.relative_to(TEMPLATE)).removesuffix(".template")
        make_folder(path.parent)
        write_atomically(path, Template(source.read_text()).substitute(values).encode())
        written.append(path)
    return written


def _lines(settings: Mapping[str, object]) -> str:
    """Settings as TOML, each with what it means."""
    lines = [(tomli_w.dumps({name: value}).strip(), _WORDS.get(name)) for name, value in settings.items()]
    width = max(len(line) for line, _ in lines)
    return "\n".join(f"{line:{width}}  # {words}" if words else line for line, words in lines)


def _project_name(folder: Path) -> str:
    """A name that Flower takes for an app: letters, digits and dashes."""
    name = re.sub("[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise UserError(
            f"the app is called like its folder: {folder.resolve().name!r} must begin with a letter"
        )
    return name[:32].rstrip("-")
