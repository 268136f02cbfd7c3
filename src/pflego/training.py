"""train(): from a federation, a model and a method to a run."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch

from pflego import device as devices
from pflego.algorithms.base import Algorithm, Missing
from pflego.callbacks import Callback, watching
from pflego.checkpoint import Checkpoint, RunFolder
from pflego.engines.base import Engine, EngineMaker
from pflego.engines.distributed import DistributedEngine, dealt
from pflego.engines.local import LocalEngine
from pflego.errors import UserError, check_choice, check_positive
from pflego.federation import ClientId, Federation
from pflego.files import write_atomically
from pflego.history import everybodys
from pflego.model import Model
from pflego.participation import Everyone, Fixed, Participation
from pflego.peers import Peers, joined
from pflego.problem import Memory, Problems, Streaming
from pflego.progress import Progress
from pflego.replies import Network, Speed
from pflego.rounds import Rounds
from pflego.run import Run
from pflego.settings import RECORD, Settings, differences, record
from pflego.states import States
from pflego.weights import Weights, to

EngineName: TypeAlias = Literal["local", "distributed", "flower-simulation"]
Stored: TypeAlias = Callable[[ClientId], Weights | None]  # reads a client's state, where there is one

_CHECK_SAMPLES = 8  # how many samples the backbone is tried on before training


def train(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    *,
    rounds: int,
    participation: Participation | int = Everyone(),  # noqa: B008 - immutable
    dropout: float = 0.0,
    deadline: float | None = None,
    speed: Speed = Speed(),  # noqa: B008 - immutable
    missing: Missing = "zero",
    batch_size: int | None = None,
    memory: Memory = "keep",
    seed: int = 0,
    evaluate_every: int | None = 10,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device = "auto",
    checkpoint_every: int = 1,
    states: Literal["memory", "disk"] = "memory",
    engine: EngineName | EngineMaker = "local",
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
    dropout
        The probability that a participant's reply never arrives.
    deadline
        Seconds the server waits for replies, where clients are as fast as `speed` says; None: for everybody.
    speed
        How fast clients are, in the simulation of stragglers.
    missing
        What the server does where replies are missing: "zero" counts them as zero, "renormalise" scales the
        weights of those that arrived to sum to one.
    batch_size
        Samples that go through a backbone at a time, for the same result; None: as is fastest, a client's all at
        once, or 32 images where there are convolutions.
    memory
        "keep": a slice's activations are kept for the backward pass; "recompute": they are not, at the price of a
        second forward pass; "gram": they are, and FedAvg and its kin step in the span of a client's samples wherever
        the first layer is dense and that is cheaper: the same steps, about twice as fast on images.
    seed
        Decides every random draw.
    evaluate_every
        Evaluate everyone every so many rounds and after the last one; 0: only after the last one; None: never.
    out
        A folder for settings, history and checkpoints. Without it nothing is written.
    resume
        Go on with the run in `out`, exactly as if it had never been interrupted.
    device
        "auto" (CUDA, MPS or the CPU), or a device's name.
    checkpoint_every
        Rounds between checkpoints. An interrupted run loses at most these, and does them again.
    states
        Where clients' states are held: in "memory", or on "disk", in `out`, for more clients than memory holds.
    engine
        Where client work runs: "local", in this process; "distributed", in all processes that torchrun started, each
        of which calls this with the same arguments; "flower-simulation", on a Ray cluster, by Flower; or a function
        that makes an engine of problems, algorithm and states.
    callbacks
        Told of the start, every round and the end; where there are several processes, in the first of them.
    progress
        Show progress; by default only in a terminal.
    """
    if isinstance(participation, int):
        participation = Fixed(participation)
    _check_numbers(rounds, seed, evaluate_every, checkpoint_every)
    check_choice("missing", missing, ["zero", "renormalise"])
    check_choice("states", states, ["memory", "disk"])
    if not callable(engine):
        check_choice("engine", engine, get_args(EngineName))
    if states == "disk" and out is None:
        raise UserError("states='disk' needs a folder: out=..., or --out")
    network = Network(dropout, deadline, speed)
    streaming = Streaming(batch_size, memory)
    if not isinstance(model, Model):
        raise UserError(f"model must be a pflego.Model(backbone, features=M), not a {type(model).__name__}")
    if not isinstance(algorithm, Algorithm):
        raise UserError(f"algorithm must be a method like PFLEGO(steps=50), not {algorithm!r}")
    if not isinstance(participation, Participation):
        raise UserError(
            f"participation must be a number of clients a round, Fixed, Binomial, Between or Everyone, "
            f"not {participation!r}"
        )
    participation.check(len(federation))
    place = devices.resolve(device, model.dtype)
    if not federation.remote:
        model.check(federation[0].x_train[:_CHECK_SAMPLES])
    settings: Settings = {
        **federation.source,
        **model.source,
        "algorithm": algorithm.name,
        **algorithm.settings(),
        "participation": str(participation),
        "dropout": dropout,
        "deadline": deadline,
        "samples_per_second": speed.samples_per_second,
        "speed_spread": speed.spread,
        "missing": missing,
        "batch_size": batch_size,
        "memory": memory,
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "device": str(device),
        RECORD: record(federation.fingerprint(), model.fingerprint()),
    }
    if not callable(engine):
        settings["engine"] = engine
    together = network.lossless and missing == "zero"  # may one reply stand for several clients?
    with (
        joined(engine == "distributed") as peers,
        _maker(engine, together) as make,
        _held(out, peers) as folder,
    ):
        _check_same(settings, peers)
        own = dealt(federation.sizes, peers)
        begin = _begin(
            folder,
            settings,
            resume=resume,
            keep_states=states == "memory",
            only=None if own.all() else {str(federation.ids[i]) for i in np.flatnonzero(own).tolist()},
        )
        if folder is not None:
            settings[RECORD] = folder.settings()[RECORD]  # of a run that goes on, what it was made with
            if federation.schema is not None and peers.first:
                write_atomically(folder.schema, federation.schema.to_json().encode())
        problems = Problems(federation, model.to(place), place, streaming, algorithm.label_space)
        if begin is None:
            begin = Checkpoint(0, algorithm.init_shared(model, problems.outputs, seed), {}, {}, [], {})
        elsewhere = None if own.all() else _elsewhere(federation, own)
        if folder is not None and (states == "disk" or elsewhere is not None):
            elsewhere = folder.state
        kept = kept_states(federation, model, algorithm, seed, begin, stored=elsewhere)
        here = LocalEngine(problems, algorithm, kept, together=together)
        worker: Engine = here
        if make is not None:
            worker = make(problems, algorithm, kept)
        elif engine == "distributed":
            worker = DistributedEngine(here, peers, own)
        run = Run(
            problems=problems,
            algorithm=algorithm,
            shared=to(begin.shared, place),
            states=kept,
            settings=settings,
            engine=worker if federation.remote else here,  # it answers what is asked of the run
            history=begin.history,
            evaluations=everybodys(begin.evaluations, len(federation)),
            folder=None if folder is None else folder.path,
        )
        loop = Rounds(run, worker, participation, network, missing, seed, to(begin.server, place))
        if begin.round == 0 and not federation.remote:
            loop.warn(own)
        if not peers.first:
            callbacks = []
        elif progress or (progress is None and Progress.in_terminal()):
            callbacks = [*callbacks, Progress()]
        unsaved: dict[ClientId, Weights] = {}
        with watching(callbacks, run):
            for number in range(begin.round + 1, rounds + 1):
                row, changed = loop.play(number)
                kept.update(changed)
                unsaved.update(changed)
                last = number == rounds and evaluate_every is not None
                if last or (evaluate_every and number % evaluate_every == 0):
                    loop.evaluate(row)
                run.history.append(row)
                if folder is not None:
                    folder.append(row, run.evaluations.get(number))
                    if number == rounds or number % checkpoint_every == 0:
                        folder.save(number, run.shared, loop.server, unsaved)
                        unsaved.clear()
                        if states == "disk":
                            kept.written()
                for callback in callbacks:
                    callback.on_round(run, row)
    return run


def kept_states(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    seed: int,
    begin: Checkpoint,
    *,
    stored: Stored | None = None,
) -> States:
    """The clients' states as of a checkpoint; those of clients never visited are made when asked for, on the CPU."""
    first = Problems(federation, model, labels=algorithm.label_space)
    kept = States(federation, lambda id: algorithm.init_state(first[federation.position(id)], seed), stored)
    kept.update({id: begin.states[str(id)] for id in federation.ids if str(id) in begin.states})
    return kept


def _check_numbers(rounds: object, seed: object, evaluate_every: object, checkpoint_every: object) -> None:
    check_positive("rounds", rounds, whole=True)
    check_positive("checkpoint_every", checkpoint_every, whole=True)
    if evaluate_every is not None and (not isinstance(evaluate_every, int) or evaluate_every < 0):
        raise UserError(f"evaluate_every must be a whole number, 0 or more, not {evaluate_every!r}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"seed must be a whole number, not {seed!r}")


@contextmanager
def _maker(engine: EngineName | EngineMaker, together: bool) -> Iterator[EngineMaker | None]:
    """What makes the engine, if it is not one that is here."""
    if engine == "flower-simulation":
        from pflego.engines.flower_simulation import simulation

        with simulation(together=together) as make:
            yield make
    else:
        yield engine if callable(engine) else None


def _check_same(settings: Settings, peers: Peers) -> None:
    """Refuse processes that were given different things."""
    first, *_ = peers.gather(settings)
    if first != settings:
        raise UserError(
            f"process {peers.rank} was not given what process 0 was: {'; '.join(differences(first, settings))}; "
            "weights and data that are drawn at random need the same seed everywhere"
        )


@contextmanager
def _held(out: str | Path | None, peers: Peers) -> Iterator[RunFolder | None]:
    """The run's folder, kept from others."""
    if out is None:
        yield None
    else:
        folder = RunFolder(Path(out), peers)
        with folder.held():
            yield folder


def _begin(
    folder: RunFolder | None,
    settings: Settings,
    *,
    resume: bool,
    keep_states: bool,
    only: Container[str] | None,
) -> Checkpoint | None:
    """Make the folder ready; give where to go on, if there is such a place."""
    if folder is None:
        if resume:
            raise UserError("to resume a run, say where it is: out=..., or --out")
        return None
    if resume:
        return folder.resume(settings, keep_states=keep_states, only=only)
    folder.begin(settings)
    return None


def _elsewhere(federation: Federation, own: npt.NDArray[np.bool_]) -> Stored:
    """Refuse to give the states of other processes' clients."""

    def none(id: ClientId) -> None:
        if not own[federation.position(id)]:
            raise UserError(
                f"the state of client {id!r} is in another process: give the run a folder, out=..., "
                "and all states can be read from there"
            )

    return none
