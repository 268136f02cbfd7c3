"""What a client would have come to without the others.

Alone, a client trains by the run's own method and settings from the same first weights, for as many rounds as it took
part in, in a federation that has no other client. So it does the same work in the same way, and what differs is what
it has from others. (Plain gradient descent with as many passes over its data would be a straw man for a method that
takes fifty head steps a pass; with as many steps it comes to the same figures at many times the price.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from pflego.algorithms.local import Local
from pflego.engines.local import LocalEngine
from pflego.engines.parallel import map_in_threads
from pflego.federation.draws import spelled
from pflego.federation.network import Network
from pflego.federation.participation import Everyone
from pflego.federation.remote import RemoteFederation
from pflego.federation.roster import Federation
from pflego.files import write_atomically
from pflego.learning.problems import Problems
from pflego.report.words import duration
from pflego.runs.record import RECORD
from pflego.runs.run import Run
from pflego.weights import Weights, to

BASELINE = (
    "Alone: the same method, settings and first weights, for as many rounds as the client took part in, "
    "with nobody else in the federation."
)
_QUICK = 5.0  # seconds of work that need not be asked for
_FILE = "alone.json"  # beside the checkpoint


@dataclass(frozen=True)
class Alone:
    """Clients' figures without the others, or why there are none."""

    figures: Sequence[float | None] | None
    why_not: str = ""


def learn_alone(
    run: Run, positions: Sequence[int], visits: Sequence[int] | None, *, wanted: bool | None
) -> Alone:
    """Let some clients learn alone, or read what they came to before.

    It takes about as long as the run did. wanted=None: only if that is quick.
    """
    if isinstance(run.federation, RemoteFederation):
        return Alone(None, "How clients would do alone cannot be tried here.")
    if isinstance(run.algorithm, Local):
        return Alone(None, "In this run every client learns alone.")
    if visits is None:
        return Alone(None, "There are too many clients to try how each would do alone.")
    kept = None if run.folder is None else run.folder / "checkpoint" / _FILE
    identity = _identity(run, positions)
    if wanted is not False and kept is not None and (known := _read(kept, identity)) is not None:
        return Alone(known)
    # by the median: the first round may have waited for a compiler
    seconds = len(run.history) * median(row.get("seconds") or 0.0 for row in run.history)
    if not (wanted or (wanted is None and seconds <= _QUICK)):
        return Alone(
            None,
            "How every client would do alone was not tried. It takes about as long as the run, "
            f"{duration(seconds)}: pflego report RUN --alone, or run.report(path, alone=True).",
        )
    size = sum(run.problems.size([position]) * visits[position] for position in positions)
    figures = map_in_threads(
        lambda position: _value(run, position, visits[position]),
        positions,
        size=size,
        device=run.problems.device,
    )
    if kept is not None and kept.parent.is_dir():
        write_atomically(kept, json.dumps({"of": identity, "figures": figures}).encode())
    return Alone(figures)


def _value(run: Run, position: int, rounds: int) -> float | None:
    """Give what one client comes to; None if it never took part, so that there is nothing to compare."""
    if rounds == 0:
        return None
    algorithm, place, seed = run.algorithm, run.problems.device, run.plan.seed
    client = run.federation[position]
    problems = Problems(Federation([client]), run.model, place, run.problems.streaming, run.problems.labels)
    shared = to(algorithm.init_shared(run.model, problems.outputs, seed), place)
    states = {client.id: to(algorithm.init_state(problems[0], seed), place)}
    engine = LocalEngine(problems, algorithm, states, run.plan.transforms)
    unhindered = replace(run.plan, participation=Everyone(), population=None, network=Network(), liars=None)
    exchange = unhindered.exchange(algorithm, problems.federation)
    server: Weights = {}
    for number in range(1, rounds + 1):
        played = exchange.play(engine, number, shared, server, [0], ids=[client.id], keep=states.update)
        shared, server = played.shared, played.server
    # the task of the whole federation, which may know a unit
    return problems[0].test(engine.personal(shared, problems[0])).value(run.federation.task)


def _identity(run: Run, positions: Sequence[int]) -> object:
    """Return what the figures depend on, as JSON gives it back."""
    record = run.settings[RECORD]
    facts = {
        "federation": record["federation"],
        "model": record["model"],
        "algorithm": run.algorithm.name,
        **run.algorithm.settings(),
        "participation": spelled(run.plan.participation),
        "seed": run.plan.seed,
        "rounds": len(run.history),
        "clients": len(positions),
    }
    return json.loads(json.dumps(facts, default=str))


def _read(path: Path, identity: object) -> list[float | None] | None:
    """Read what was written for the same run; a file that cannot be read is as good as none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text())
        if content["of"] == identity:
            figures: list[float | None] = content["figures"]
            return figures
    return None
