"""A run's folder opened again: its weights, states and history, as after its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pflego.algorithms.base import Algorithm
from pflego.declaration import arguments, opening
from pflego.engines.local import LocalEngine
from pflego.errors import FolderError, SettingError, UntrustedError, UserError, path_of
from pflego.exchange.aggregation import Aggregation, Mean, aggregation_of
from pflego.exchange.compression import compression_of
from pflego.exchange.liars import liars_of
from pflego.exchange.objective import objective_of
from pflego.exchange.privacy import privacy_of
from pflego.federation.draws import Participation
from pflego.federation.members import Members
from pflego.federation.participation import participation_of
from pflego.federation.population import population_of
from pflego.federation.remote import RemoteFederation
from pflego.federation.roster import Federation
from pflego.learning import device as devices
from pflego.learning.model import Model
from pflego.learning.problems import Problems
from pflego.runs.folder import RunFolder
from pflego.runs.history import everybodys
from pflego.runs.plan import Plan
from pflego.runs.record import RECORD, Tables, joined_after
from pflego.runs.run import Run
from pflego.settings.experiment import build_model, load_data
from pflego.settings.tables import Settings
from pflego.training.train import kept_states
from pflego.weights import to

T = TypeVar("T")


def open_run(
    folder: str | Path,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    algorithm: Algorithm | None = None,
    participation: Participation | None = None,
    device: str = "auto",
    trust: bool = False,
) -> Run:
    """Open a run's folder again: its weights, states and history, as after its last checkpoint.

    Federation, model, method and participation are made again from the run's settings; one that was made in Python and
    has no name there must be given. Nothing in the folder is changed, and nothing in it is run: a backbone, method or
    participation named module:Name is loaded only with trust=True, for folders whose maker you know.

    Of a run on Flower, in its server's folder, there are the shared weights, history and figures; data and heads are
    with the clients. A history that is damaged is left out, with a warning.
    """
    with opening(trust=trust):
        return _open(path_of("folder", folder), federation, model, algorithm, participation, device)


def _open(
    folder: Path,
    federation: Federation | None,
    model: Model | None,
    algorithm: Algorithm | None,
    participation: Participation | None,
    device: str,
) -> Run:
    files = RunFolder(folder)
    if not files.exists:
        raise FolderError(f"{folder} holds no run")
    tables = files.settings()
    begin = files.load(salvage=True)
    if begin is None:
        raise FolderError(f"{folder} holds a run without a checkpoint yet: go on with pflego run --resume")
    if federation is None and (members := Members.load(files.path)) is not None:
        federation, shape = members.federation(), members.shape
    else:
        federation = federation or _again("federation", lambda: load_data({"data": _named(tables, "data")}))
        shape = tuple(federation[0].x_train.shape[1:])
    model = model or _again(
        "model", lambda: build_model(Settings.of({"model": _named(tables, "model")}), shape)
    )
    algorithm = algorithm or _again(
        "algorithm", lambda: Settings.of({"method": _named(tables, "method")}).algorithm
    )
    made_with = tables[RECORD]
    for what, ours in [("federation", federation.fingerprint()), ("model", model.fingerprint())]:
        if made_with.get(what) != ours:
            raise FolderError(
                f"{folder} was made with another {what}: its data or first weights have changed"
            )
    plan = replace(plan_of(tables, participation), secret=files.secret())
    if isinstance(federation, RemoteFederation):
        plan = replace(plan, population=federation.population)
    place = devices.resolve(device, model.dtype)
    data = plan.data(federation)
    problems = Problems(data, model.to(place), place, plan.streaming, algorithm.labels)
    states = kept_states(data, model, algorithm, plan.seed, begin)
    return Run(
        problems=problems,
        algorithm=algorithm,
        plan=plan,
        shared=to(begin.shared, place),
        states=states,
        settings=tables,
        engine=LocalEngine(problems, algorithm, states),
        history=begin.history,
        evaluations=everybodys(begin.evaluations, len(federation)),
        rejected=begin.rejections(federation.ids),
        silent=begin.silences(federation.ids),
        folder=files.path,
    )


def plan_of(tables: Tables, participation: Participation | None = None) -> Plan:
    """Make the plan of a run again from its settings."""
    run = tables["run"]
    objects = {
        "participation": participation
        or _again("participation", lambda: participation_of(run["participation"])),
        "evaluate_every": run.get("evaluate_every"),
        "population": _again("population", lambda: population_of(run.get("population"))),
        "objective": _again("objective", lambda: objective_of(run.get("objective"))),
        "privacy": _again("privacy", lambda: privacy_of(run.get("privacy"))),
        "compression": _again("compression", lambda: compression_of(run.get("compression"))),
        "liars": _again("liars", lambda: liars_of(run.get("liars"))),
        "aggregation": _rule(run.get("aggregation", "mean")),
        "joined_after": joined_after(tables),
    }
    in_python = {*objects, "transforms"}
    plain = {name: value for name, value in run.items() if name not in in_python}
    return Plan(**{**arguments(Plan, plain), **objects})


def _rule(text: object) -> Aggregation:
    """Read a rule of aggregation; one that was only ever an object in Python is not made again, and not needed here."""
    try:
        return aggregation_of(text)
    except UntrustedError:
        raise
    except SettingError:
        return Mean()


def _named(tables: Tables, table: str) -> dict[str, object]:
    """Give a table whose name says how to make something again."""
    if "name" not in tables[table]:
        raise UserError(f"its settings have no name in [{table}]")
    return dict(tables[table])


def _again(what: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except UntrustedError:
        raise
    except UserError as error:
        raise UserError(
            f"the run's {what} cannot be made again from its settings ({error}); "
            f"if it was made in Python, open the run there: pflego.open_run(folder, {what}=...)"
        ) from error
