"""train(): the round loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from pflego import device as devices
from pflego.algorithms.base import Algorithm, Round
from pflego.callbacks import Callback, watching
from pflego.checkpoint import RECORD, Checkpoint, HistoryRow, RunFolder, Settings, record
from pflego.engines.local import LocalEngine, Outcome
from pflego.errors import UserError, check_positive
from pflego.evaluation import pooled
from pflego.federation import ClientId, Federation
from pflego.model import Model
from pflego.participation import Everyone, Fixed, Participation, cohort
from pflego.problem import Problem
from pflego.progress import Progress
from pflego.run import Run
from pflego.states import States
from pflego.task import Task
from pflego.weights import Weights, nbytes, to

_CHECK_SAMPLES = 8  # how many samples the backbone is tried on before training


def train(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    *,
    rounds: int,
    participation: Participation | int = Everyone(),  # noqa: B008 - immutable
    seed: int = 0,
    evaluate_every: int = 10,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device = "auto",
    checkpoint_every: int = 1,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Run:
    """Train a federation.

    Parameters
    ----------
    federation, model, algorithm
        Who, what and how.
    rounds
        T.
    participation
        Who takes part: `Fixed(r)` or plain r, `Binomial(p)`, `Between(low, high)`, `Everyone()`.
    seed
        Decides every random draw.
    evaluate_every
        Evaluate everyone every so many rounds and after the last one; 0: only after the last one.
    out
        A folder for settings, history and checkpoints. Without it nothing is written.
    resume
        Go on with the run in `out`, exactly as if it had never been interrupted.
    device
        "auto" (CUDA, MPS or the CPU), or a device's name.
    checkpoint_every
        Rounds between checkpoints. An interrupted run loses at most these, and does them again.
    callbacks
        Told of the start, every round and the end.
    progress
        Show progress; by default only in a terminal.
    """
    if isinstance(participation, int):
        participation = Fixed(participation)
    _check_numbers(rounds, seed, evaluate_every, checkpoint_every)
    if not isinstance(algorithm, Algorithm):
        raise UserError(f"algorithm must be a method like PFLEGO(steps=50), not {algorithm!r}")
    participation.check(len(federation))
    place = devices.resolve(device, model.dtype)
    model.check(federation[0].x_train[:_CHECK_SAMPLES])
    settings: Settings = {
        **federation.source,
        **model.source,
        "algorithm": algorithm.name,
        **algorithm.settings(),
        "participation": str(participation),
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "device": str(device),
        RECORD: record(federation.fingerprint(), model.fingerprint()),
    }
    folder = None if out is None else RunFolder(Path(out))
    start = _start(folder, settings, resume=resume) or Checkpoint(0, algorithm.init_shared(model), {}, {}, [])

    def first_state(id: ClientId) -> Weights:
        problem = Problem(federation.client(id), model, federation.task, torch.device("cpu"))
        return algorithm.init_state(problem, seed)

    states = States(federation, first_state)
    states.update({id: start.states[str(id)] for id in federation.ids if str(id) in start.states})
    run = Run(
        federation=federation,
        model=model,
        algorithm=algorithm,
        shared=to(start.shared, place),
        states=states,
        settings=settings,
        device=place,
        history=start.history,
        folder=None if folder is None else folder.path,
    )
    server = to(start.server, place)
    engine = LocalEngine(federation, model, algorithm, states, place)
    unsaved: dict[ClientId, Weights] = {}
    if progress or (progress is None and Progress.in_terminal()):
        callbacks = [*callbacks, Progress()]
    with watching(callbacks, run):
        for number in range(start.round + 1, rounds + 1):
            round = Round(
                number=number,
                clients=len(federation),
                expected=participation.expected(len(federation)),
                samples=federation.samples,
                seed=seed,
            )
            chosen = cohort(participation, len(federation), seed=seed, round=number)
            outcomes = engine.run(round, run.shared, chosen)
            bytes_down = nbytes(run.shared) * len(chosen)
            began = time.perf_counter()
            if outcomes:  # where nobody took part there is no step, not even one of the server's momentum
                replies = [outcome.reply for outcome in outcomes]
                run.shared, server = algorithm.server_update(round, run.shared, server, replies)
            seconds = time.perf_counter() - began
            changed = {outcome.reply.client: outcome.state for outcome in outcomes}
            states.update(changed)
            unsaved.update(changed)
            row = _row(number, outcomes, federation.task, server_seconds=seconds, bytes_down=bytes_down)
            if number == rounds or (evaluate_every and number % evaluate_every == 0):
                row[f"everyone_{federation.task.metric}"] = pooled(run.scores(), federation.task)
            run.history.append(row)
            if folder is not None:
                folder.append(row)
                if number == rounds or number % checkpoint_every == 0:
                    folder.save(number, run.shared, server, unsaved)
                    unsaved.clear()
            for callback in callbacks:
                callback.on_round(run, row)
    return run


def _check_numbers(rounds: object, seed: object, evaluate_every: object, checkpoint_every: object) -> None:
    check_positive("rounds", rounds, whole=True)
    check_positive("checkpoint_every", checkpoint_every, whole=True)
    if not isinstance(evaluate_every, int) or evaluate_every < 0:
        raise UserError(f"evaluate_every must be a whole number, 0 or more, not {evaluate_every!r}")
    if not isinstance(seed, int):
        raise UserError(f"seed must be a whole number, not {seed!r}")


def _start(folder: RunFolder | None, settings: Settings, *, resume: bool) -> Checkpoint | None:
    """Make the folder ready; give where to go on, if there is such a place."""
    if folder is None:
        if resume:
            raise UserError("to resume a run, say where it is: out=..., or --out")
        return None
    if resume:
        return folder.resume(settings)
    folder.begin(settings)
    return None


def _row(
    number: int, outcomes: Sequence[Outcome], task: Task, *, server_seconds: float, bytes_down: int
) -> HistoryRow:
    """Sum up a round."""
    samples = sum(outcome.reply.samples for outcome in outcomes)
    return {
        "round": number,
        "participants": len(outcomes),
        "loss": sum(o.loss * o.reply.samples for o in outcomes) / samples if outcomes else None,
        f"participants_{task.metric}": pooled([outcome.score for outcome in outcomes], task),
        "seconds": sum(outcome.seconds for outcome in outcomes) + server_seconds,
        "bytes_up": sum(nbytes(outcome.reply.message) for outcome in outcomes),
        "bytes_down": bytes_down,
        "forward_passes": max((outcome.forward_passes for outcome in outcomes), default=0),
        "backward_passes": max((outcome.backward_passes for outcome in outcomes), default=0),
    }
