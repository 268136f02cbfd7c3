"""A client that comes later: it gets a state for the shared weights as they are, and takes part from then on.

What the others have trained does not move. From the next round on there are I + 1 clients, with the alpha_i that their
sample counts make; a cohort is drawn among all of them.

A run's folder remembers who joined: `joined` in its settings says where the client's data are, a setting of the data
like any other, and the record says after which round it came.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from pflego.algorithms.base import newcomer
from pflego.algorithms.local import Local
from pflego.data.left_out import is_left_out, left_out
from pflego.data.one_client import read_client
from pflego.data.schema import Schema, schema_of
from pflego.engines.local import LocalEngine
from pflego.errors import FolderError, UserError, check_positive
from pflego.federation.draws import expected
from pflego.federation.roster import Client, ClientId, Federation
from pflego.files import make_folder
from pflego.learning.evaluation import Score
from pflego.learning.heads import is_head
from pflego.learning.problems import Problems
from pflego.runs.folder import RunFolder
from pflego.runs.record import JOINED, RECORD, Tables
from pflego.runs.run import Run
from pflego.runs.states import States
from pflego.training.loop import RateWarning
from pflego.training.train import train
from pflego.weights import Weights, to

_MOST_ALONE = 20  # rounds that a newcomer trains alone, if not given otherwise


@dataclass(frozen=True)
class Joined:
    """What came of joining: the run with the client in it, and the client's results on its own test data."""

    client: ClientId
    run: Run
    score: Score  # with the state it has now
    untrained: Score | None  # with its first state; None: this method's clients keep nothing
    alone: Score | None  # by the same method, with nobody else; None: not tried


def enlarged(
    federation: Federation, client: Client, *, data: str | None = None, schema: Schema | None = None
) -> Federation:
    """Give a federation with one more client, the last one.

    Parameters
    ----------
    data
        The file it was read from; without it, the client is Python's alone.
    schema
        How its file was read, where that is not how the others' data were: it has a class that they have not.
    """
    first = federation[0]
    Federation([first, client])  # the same task and shapes, or an error that says what differs
    entry = {"client": client.id, **({"data": data} if data else {}), "fingerprint": _fingerprint(client)}
    classes, weighted = federation.classes, federation.weighted or client.weights is not None
    return Federation.lazy(
        [*federation.ids, client.id],
        lambda client_id: client if client_id == client.id else federation.client(client_id),
        sizes=np.append(federation.sizes, len(client.x_train)),
        masses=np.append(federation.masses, client.mass) if weighted else None,
        classes=None if classes is None else sorted({*classes, *client.classes.tolist()}),
        most_classes=None if classes is None else max(federation.most_classes or 0, len(client.classes)),
        source={**federation.source, JOINED: [*_entries(federation.source), entry]},
        schema=schema or federation.schema,
    )


def enlarged_from_file(federation: Federation, client_id: ClientId, path: Path) -> Federation:
    """Give a federation with a client that is read from a file, as the others' data were."""
    known = schema_of(federation)
    client, schema = read_client(path, client_id, known, seed=int(str(federation.source.get("data_seed", 0))))
    return enlarged(federation, client, data=str(path.resolve()), schema=None if schema == known else schema)


def enlarged_left_out(federation: Federation, client_id: ClientId) -> Federation:
    """Give a federation with a client that its data have, but that was left out of it."""
    known = schema_of(federation)
    client, schema = left_out(federation, client_id)
    return enlarged(federation, client, schema=None if schema == known else schema)


def with_joined(federation: Federation, entries: object) -> Federation:
    """Give a federation with all who joined it, as a run's settings name them."""
    if not isinstance(entries, list) or not all(isinstance(e, dict) and "client" in e for e in entries):
        raise UserError(f"{JOINED} must be a list of tables with client and data, not {entries!r}")
    for entry in entries:
        client_id, data = entry["client"], entry.get("data")
        if data is not None:
            federation = enlarged_from_file(federation, client_id, Path(data))
        elif is_left_out(federation, client_id):
            federation = enlarged_left_out(federation, client_id)
        else:
            raise UserError(f"client {client_id!r} joined in Python, and no file has its data")
        now = _entries(federation.source)[-1]
        if entry.get("fingerprint", now["fingerprint"]) != now["fingerprint"]:
            place = data or federation.source["data"]
            raise UserError(f"{place} has other samples of client {client_id!r} than when it joined")
    return federation


def join(
    run: Run,
    federation: Federation,
    *,
    steps: int | None = None,
    alone: int | None = None,
    out: Path | None = None,
) -> Joined:
    """Let the last client of an enlarged federation into a run; `Run.join` explains the rest."""
    if steps is not None:
        check_positive("steps", steps, whole=True)
    if alone:
        check_positive("alone", alone, whole=True)
    _check_folders(run, out)
    problems = replace(run.problems, federation=federation)
    _check_shared(run, problems)
    problem = problems[len(federation) - 1]
    client_id = problem.client.id
    first, state = newcomer(run.algorithm, run.shared, problem, seed=run.plan.seed, steps=steps)
    states = States(federation, lambda other: state if other == client_id else run.states[other])
    after = replace(
        run,
        problems=problems,
        states=states,
        engine=LocalEngine(problems, run.algorithm, states),
        plan=replace(run.plan, joined_after=[*run.plan.joined_after, _round(run)]),
        settings=_settings(run, federation),
        evaluations={number: [*own, None] for number, own in run.evaluations.items()},
        folder=out or run.folder,
    )
    joined = Joined(
        client_id,
        after,
        score=problem.test(run.algorithm.personal(run.shared, to(state, problem.device), problem)),
        untrained=problem.test(run.algorithm.personal(run.shared, first, problem)) if first else None,
        alone=_alone(run, problem.client, alone),
    )
    _store(run, joined, state, out)
    return joined


def _check_folders(run: Run, out: Path | None) -> None:
    """Refuse where nothing could be stored, before there is anything to store."""
    if out is not None:
        if run.folder is None:
            raise UserError("only a run with a folder can be written to another: train it with out=...")
        if out.exists():
            raise FolderError(f"{out} exists already: choose another folder for the enlarged run")
    if run.folder is not None:
        made_with = RunFolder(run.folder).settings()[RECORD]
        if made_with.get("federation") != run.federation.fingerprint():
            raise FolderError(f"{run.folder} has another federation by now: open it again")


def _check_shared(run: Run, problems: Problems) -> None:
    """Refuse a client that needs other outputs, or classes, than what is shared already has."""
    if problems.outputs == run.problems.outputs:
        return
    needed = run.algorithm.init_shared(run.model, problems.outputs, run.plan.seed)
    if all(run.shared[name].shape == w.shape for name, w in needed.items()):
        return
    client = problems.federation[len(problems.federation) - 1]
    if run.algorithm.labels == "local":
        what = f"has {len(client.classes)} classes"
    else:
        schema = schema_of(problems.federation)
        new = sorted({*client.classes.tolist()} - {*(run.federation.classes or [])})
        what = f"has classes that nobody had: {', '.join(map(schema.class_name, new))}"
    shared = "a head" if any(is_head(name) for name in run.shared) else "mean features"
    raise UserError(
        f"client {client.id!r} {what}, but {run.algorithm.name} shares {shared} of {run.problems.outputs} outputs, "
        f"which is trained already: leave those samples out, or train with a method whose heads are personal"
    )


def _alone(run: Run, client: Client, rounds: int | None) -> Score | None:
    """Train the client alone by the run's own method, from the same first weights, and return its score."""
    if rounds is None:
        mean = expected(run.plan.participation, run.federation.ids, seed=run.plan.seed)
        usual = len(run.history) * mean / len(run.federation)
        rounds = max(1, min(round(usual), _MOST_ALONE))
    if rounds == 0 or isinstance(run.algorithm, Local):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateWarning)
        alone = train(
            Federation([client], schema=run.federation.schema),
            run.model,
            run.algorithm,
            rounds=rounds,
            slice_size=run.problems.streaming.slice_size,
            memory=run.problems.streaming.memory,
            speedup=run.problems.streaming.speedup,
            trunk=run.problems.streaming.trunk,
            seed=run.plan.seed,
            evaluate_every=None,
            device=run.problems.device,
            progress=False,
        )
    return alone.scores()[0]


def _settings(run: Run, federation: Federation) -> Tables:
    """Give the run's settings, with the client that has come."""
    return {
        **run.settings,
        "data": {**run.settings["data"], JOINED: federation.source[JOINED]},
        RECORD: {
            **run.settings[RECORD],
            "federation": federation.fingerprint(),
            "joined_after": [*run.plan.joined_after, _round(run)],
        },
    }


def _store(run: Run, joined: Joined, state: Weights, out: Path | None) -> None:
    """Enlarge the run's folder, or a copy of it."""
    if run.folder is None:
        return
    changed = {table: joined.run.settings[table] for table in ("data", RECORD)}
    with nullcontext(RunFolder(run.folder)) if out is None else _copied(run.folder, out) as files:
        told = {**files.settings(), **changed}
        joined.run.settings[RECORD] |= files.join(joined.client, state, told, round_number=_round(run))[
            RECORD
        ]


@contextmanager
def _copied(folder: Path, out: Path) -> Iterator[RunFolder]:
    """Copy a run's folder to be changed; the copy takes its name when that is done."""
    draft = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        make_folder(out.parent)
        shutil.copytree(folder, draft)
        yield RunFolder(draft)
        draft.rename(out)
    except OSError as error:
        if isinstance(error, FolderError):
            raise
        raise FolderError(f"cannot copy {folder} to {out}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _round(run: Run) -> int:
    return int(run.history[-1]["round"] or 0) if run.history else 0


def _entries(source: Mapping[str, object]) -> list[dict[str, object]]:
    entries = source.get(JOINED)
    return list(entries) if isinstance(entries, list) else []


def _fingerprint(client: Client) -> str:
    """Digest a client's data: a file that has changed since is noticed."""
    digest = blake2b(digest_size=12)
    weights = [] if client.weights is None else [client.weights]
    for tensor in (client.x_train, client.y_train, client.x_test, client.y_test, *weights):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
