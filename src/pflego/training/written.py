"""A run as it is written down: what was asked for, where it goes on, what its clients have kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pflego.algorithms.base import Algorithm
from pflego.algorithms.registry import spelling
from pflego.declaration import Declared
from pflego.engines.peers import Peers
from pflego.errors import FolderError, SettingError, UserError
from pflego.exchange import aggregation as rules
from pflego.federation.draws import spelled
from pflego.federation.population import population_of
from pflego.federation.roster import ClientId, Federation
from pflego.learning.model import Model
from pflego.learning.problems import Problems
from pflego.runs.folder import Checkpoint, RunFolder
from pflego.runs.plan import Plan
from pflego.runs.record import RECORD, Table, Tables, in_table, record
from pflego.runs.states import States
from pflego.weights import Weights

Stored: TypeAlias = Callable[[ClientId], Weights | None]  # reads a client's state, where there is one


def tables_of(given: Mapping[str, object], settings: Mapping[str, Declared], plan: Plan) -> Tables:
    """Give everything that was asked for, as settings.toml has it; `settings` are those that are declared."""
    federation, model, algorithm = given["federation"], given["model"], given["algorithm"]
    assert isinstance(federation, Federation)
    assert isinstance(model, Model)
    assert isinstance(algorithm, Algorithm)
    run: Table = {}
    for name, one in settings.items():
        owner = plan.network.speed if one.parameter not in given else None
        value = given[one.parameter] if owner is None else getattr(owner, one.parameter)
        run[name] = value
    run |= {"participation": spelled(plan.participation), "device": str(given["device"])}
    wanted = population_of(given["population"])
    run["population"] = None if wanted is None else str(wanted)
    run["objective"] = None if plan.objective is None else str(plan.objective)
    run["privacy"] = None if plan.privacy is None else str(plan.privacy)
    run["compression"] = None if plan.compression is None else str(plan.compression)
    run["liars"] = None if plan.liars is None else str(plan.liars)
    run["out"] = None if given["out"] is None else str(given["out"])
    if callable(given["engine"]):
        del run["engine"]
    run["aggregation"] = rules.spelled(plan.aggregation)
    if plan.transforms:
        run["transforms"] = [repr(one) for one in plan.transforms]
    return {
        "data": in_table(federation.source),
        "model": in_table(model.source),
        "method": {"name": spelling(type(algorithm)), **algorithm.settings()},
        "run": run,
        RECORD: record(federation.fingerprint(), model.fingerprint()),
    }


@contextmanager
def held(out: object, peers: Peers, free: Set[str]) -> Iterator[RunFolder | None]:
    """Give the run's folder, kept from others."""
    if out is None:
        yield None
    else:
        folder = RunFolder(Path(str(out)), peers, free=free)
        with folder.held():
            yield folder


def begin_at(
    folder: RunFolder | None, tables: Tables, given: Mapping[str, object], own: npt.NDArray[np.bool_]
) -> Checkpoint | None:
    """Make the folder ready; give where to go on, if there is such a place."""
    if folder is None:
        return None
    federation = given["federation"]
    assert isinstance(federation, Federation)
    begin, schema = None, None if federation.schema is None else federation.schema.to_json()
    if given["resume"]:
        only = None if own.all() else {str(federation.ids[i]) for i in np.flatnonzero(own).tolist()}
        in_memory = given["states"] == "memory"
        begin = folder.resume(tables, schema=schema, keep_states=in_memory, only=only)
    else:
        folder.begin(tables, schema=schema)
    return begin


def secret_of(folder: RunFolder | None, begin: Checkpoint | None, checkpoint_every: int) -> bytes:
    """Give what cohorts and noise of a server of real clients are drawn from: everybody knows the seed."""
    if folder is None or checkpoint_every != 1:
        raise SettingError(
            "privacy= with real clients needs a folder and checkpoint_every=1: weights may leave only when they are on "
            "disk, or a round done again would be released twice under one noise"
        )
    secret = folder.secret(begins=begin is None)
    if secret is None:
        raise FolderError(
            f"the secret of the run in {folder.path} is gone, and with it cohorts and noise: bring checkpoint/secret "
            "back from a backup, or start a new run"
        )
    return secret


def kept_states(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    seed: int,
    begin: Checkpoint,
    stored: Stored | None = None,
    *,
    in_memory: bool = True,
) -> States:
    """Give clients' states as of a checkpoint; those of clients never visited are made when asked for, on the CPU."""
    first = Problems(federation, model, labels=algorithm.labels)
    kept = States(
        federation,
        lambda client: algorithm.init_state(first[federation.position(client)], seed),
        stored,
        in_memory=in_memory,
    )
    if begin.states:  # there may be a million clients
        kept.update(
            {client: begin.states[str(client)] for client in federation.ids if str(client) in begin.states}
        )
    return kept


def elsewhere(federation: Federation, own: npt.NDArray[np.bool_]) -> Stored:
    """Refuse to give the states of other processes' clients."""

    def none(client: ClientId) -> None:
        if not own[federation.position(client)]:
            raise UserError(
                f"the state of client {client!r} is in another process: give the run a folder, out=..., "
                "and all states can be read from there"
            )

    return none
