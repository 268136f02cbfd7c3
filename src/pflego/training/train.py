"""train(): from a federation, a model and a method to a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pflego.algorithms.base import Algorithm
from pflego.declaration import (
    Count,
    InPython,
    Limits,
    MayChange,
    Positive,
    Probability,
    Reads,
    Simulated,
    Whole,
    check_arguments,
    declared,
)
from pflego.engines.base import Engine, EngineMaker
from pflego.engines.distributed import DistributedEngine, dealt
from pflego.engines.local import LocalEngine
from pflego.engines.peers import Peers, joined
from pflego.errors import SettingError, calling, named, shortened
from pflego.exchange.aggregation import Aggregation, Mean, aggregation_of
from pflego.exchange.compression import Compression, compression_of
from pflego.exchange.liars import Liars, liars_of
from pflego.exchange.objective import Objective, objective_of
from pflego.exchange.privacy import ClientPrivacy, privacy_of
from pflego.exchange.transforms import Transform
from pflego.exchange.weighting import Missing, WeightingName
from pflego.federation.draws import Participation
from pflego.federation.network import Network, Speed
from pflego.federation.participation import Everyone, participation_of
from pflego.federation.population import Population, population_of
from pflego.federation.remote import RemoteFederation
from pflego.federation.roster import Federation
from pflego.learning import device as devices
from pflego.learning.model import Model
from pflego.learning.problems import Problems
from pflego.learning.streaming import Speedup, Streaming, TrunkPasses
from pflego.runs.folder import Checkpoint
from pflego.runs.history import everybodys
from pflego.runs.plan import Plan
from pflego.runs.privacy import check_private
from pflego.runs.record import RECORD, joined_after
from pflego.runs.run import Run
from pflego.training.callbacks import Callback
from pflego.training.checks import affordable, check_given, check_liars, check_same, check_together
from pflego.training.loop import Training
from pflego.training.progress import Progress
from pflego.training.written import begin_at, elsewhere, held, secret_of, tables_of
from pflego.training.written import kept_states as kept_states
from pflego.weights import to

EngineName: TypeAlias = Literal["local", "distributed", "flower-simulation"]

_CHECK_SAMPLES = 8  # how many samples the backbone is tried on before training


def train(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    *,
    rounds: Annotated[Whole, MayChange] = 100,
    participation: Annotated[Participation | int | str, Reads(participation_of)] = Everyone(),
    population: Annotated[Population | str | None, Reads(population_of)] = None,
    dropout: Annotated[Probability, Simulated] = 0.0,
    burst: Annotated[float | None, Limits(least=1), Simulated] = None,
    deadline: Annotated[Positive | None, Simulated] = None,
    speed: Speed = Speed(),
    missing: Missing = "zero",
    weighting: WeightingName = "samples",
    objective: Annotated[Objective | str | None, Reads(objective_of)] = None,
    aggregation: Annotated[Aggregation | str, Reads(aggregation_of)] = Mean(),
    privacy: Annotated[ClientPrivacy | str | None, Reads(privacy_of)] = None,
    liars: Annotated[Liars | str | None, Reads(liars_of), Simulated] = None,
    transforms: Annotated[Sequence[Transform], InPython] = (),
    compression: Annotated[Compression | str | None, Reads(compression_of)] = None,
    slice_size: Whole | None = None,
    memory: str | float = "1GB",
    speedup: Speedup = "auto",
    trunk: TrunkPasses = "once",
    seed: int = 0,
    evaluate_every: Count | None = 10,
    evaluate_adapted: bool = False,
    evaluate_training: bool = False,
    device: Annotated[str | torch.device, MayChange] = "auto",
    engine: Annotated[EngineName | EngineMaker, MayChange, Simulated] = "local",
    out: Annotated[str | Path | None, MayChange] = None,
    checkpoint_every: Annotated[Whole, MayChange] = 1,
    keep: Annotated[Whole, MayChange] = 1,
    states: Annotated[Literal["memory", "disk"], MayChange, Simulated] = "memory",
    resume: Annotated[bool, InPython] = False,
    callbacks: Annotated[Sequence[Callback], InPython] = (),
    progress: Annotated[bool | None, InPython] = None,
) -> Run:
    """Train a federation.

    Parameters
    ----------
    federation, model, algorithm
        Who, what and how.
    rounds
        T, the number of rounds.
    participation
        Who takes part in a round: a number, everyone, binomial:0.2, between:4-28; independent:FILE (client ids and
        probabilities, JSON or CSV; or table.csv:CLIENT:CHANCE, by columns), daily:0.05-0.5/24 (clients in time zones),
        estimated:50:PROCESS (chances that the server only estimates); or module:Name of your own. In Python
        `Fixed(r)`, `Everyone()`, `Binomial(p)`, `Between(low, high)`, `Independent({id: p})`, `Daily(low, high)`,
        `Estimated(process)`, or any object with check, expected and draw.
    population
        Who is a member when: a JSON file with join and leave, each a round by client id, or a list of rounds; in a
        simulation also module:function of (seed, round). In Python `Population(join={id: round}, leave={id: round})`.
        If not given, everybody from the first round to the last. On Flower a site that is not there in its round joins
        when it is.
    dropout
        The probability that a participant's reply never arrives.
    burst
        The mean length of a burst of losses, in rounds, where replies of a client are lost one after the other; if not
        given, every reply is lost by itself. The share that is lost is `dropout` all the same.
    deadline
        Seconds the server waits for replies in a simulation of stragglers; if not given, for everybody. Clients are as
        fast as `speed` says.
    speed
        How fast clients are, in the simulation of stragglers.
    missing
        Where replies are missing: count them as zero, or renormalise the weights of the others to sum to one; or
        normalise the weights of those that arrived in every round, missing or not. inverse: divide each weight by the
        probability that the client takes part and its reply arrives, for every method.
    weighting
        Whose loss counts how much: by samples, as in the paper, or every client equal. Samples that have weights count
        by these.
    objective
        What is minimised instead of the mean loss: qfair:1, cvar:0.1 or agnostic:0.01, for methods whose clients send
        the gradient of their full loss. In Python `QFair(q)`, `CVaR(tail)`, `Agnostic(rate)`.
    aggregation
        How contributions are combined: mean, or a rule that bounds what a few liars can do (median, trimmed:0.2,
        krum:2, geometric, normbound), or module:Name of your own. In Python also a rule itself: `TrimmedMean(0.2)`.
    privacy
        Differential privacy of everything shared, for each client as a whole: clip=1,noise=1,delta=1e-5, and if wanted
        max_epsilon=8, before which training stops, or quantile=0.5, which the clip then follows. Needs equal weighting.
        In Python `ClientPrivacy(clip, noise, delta, max_epsilon)`.
    liars
        Clients that lie, in a simulation, and which share of all they are: sign@0.2, scale:10@0.2, noise:10@0.2,
        samples:10+sign@0.2 (false sample counts, and more), labels@0.2, shuffle@0.2, little@0.2. If not given, nobody
        does. `pflego attack` tries many against many rules. In Python `Liars(SignFlip(), 0.2)`.
    transforms
        What happens to a contribution on its client, before it is sent, in this order.
    compression
        How contributions are made small for the wire, after all transforms: quantise:8 (bits) or random:0.1 (share of
        the numbers), which are unbiased; top:0.05 or sign, whose error a client keeps and sends later. If not given,
        they are sent as they are. In Python `Quantise(8)`, `RandomPart(0.1)`, `Top(0.05)`, `Sign()`.
    slice_size
        Samples that go through a backbone at a time, for the same result. If not given, as is fastest: a client's all
        at once, or 32 images where there are convolutions.
    memory
        What a client may take up while it works: 256MB, 1GB, a number of bytes, or unlimited. Activations that do not
        fit are computed again on the way back, for up to a second forward pass, with the same result.
    speedup
        Whether full steps through a first dense layer are taken in the span of a client's samples: auto, where that is
        cheaper and memory suffices; gram, wherever memory does; none. They are the same steps of FedAvg and its kin,
        about twice as fast on images.
    trunk
        Pass samples through the frozen beginning of a backbone once, and keep what comes of it for all rounds, in
        memory up to `memory` and on disk beyond it; or always, in every pass. The result is the same.
    seed
        Decides every random draw.
    evaluate_every
        Rounds between evaluations of everyone; 0: only after the last round. None, in Python: never.
    evaluate_adapted
        Evaluate everyone twice: with what a client has, and after the local steps that a participant takes before it is
        judged.
    evaluate_training
        Evaluate participants on their training data too, as in the paper's figure 6; not on Flower.
    device
        auto (CUDA, MPS or the CPU), or a device's name.
    engine
        Where clients work: local, distributed (in the processes torchrun starts) or flower-simulation (on a Ray
        cluster). Under "distributed" each process calls this with the same arguments. In Python also a function that
        makes an engine of problems, algorithm and states.
    out
        Folder for settings, history and checkpoints. In Python nothing is written without it.
    checkpoint_every
        Rounds between checkpoints. An interrupted run loses at most these, and does them again.
    keep
        Checkpoints that are kept, the latest ones: `pflego run --resume --back-to ROUND` goes back to one.
    states
        Hold clients' states in memory, or on disk, in `out`, for more clients than memory holds.
    resume
        Go on with the run in `out`, exactly as if it had never been interrupted.
    callbacks
        Told of the start, every round and the end; where there are several processes, in the first of them.
    progress
        Show progress; by default only in a terminal.
    """
    given = dict(locals())
    check_arguments(train, given)
    check_given(given)
    plan = Plan(
        rounds=rounds,
        participation=participation_of(participation),
        population=population_of(population),
        network=Network(dropout, deadline, speed, burst),
        weighting=weighting,
        objective=objective_of(objective),
        aggregation=aggregation_of(aggregation),
        liars=liars_of(liars),
        missing=missing,
        privacy=privacy_of(privacy),
        transforms=transforms,
        compression=compression_of(compression),
        streaming=Streaming(None if slice_size is None else int(slice_size), memory, speedup, trunk),
        seed=seed,
        evaluate_every=evaluate_every,
        evaluate_adapted=evaluate_adapted,
        evaluate_training=evaluate_training,
    )
    check_private(plan, algorithm)
    if isinstance(federation, RemoteFederation):
        plan = replace(plan, population=federation.population)  # who really was there, whatever was asked for
        plan.check(federation.ids, awaited=federation.awaited)
    else:
        plan.check(federation.ids)
    check_together(plan, algorithm)
    check_liars(plan, federation, engine)
    algorithm.check_model(model)
    plan = affordable(plan, algorithm, federation)
    place = devices.resolve(device, model.dtype)
    if (inputs := federation.some_inputs(_CHECK_SAMPLES)) is not None:
        model.check(inputs)
    with joined(engine == "distributed") as peers, held(out, peers, may_change()) as folder:
        tables = tables_of(given, declared(train), plan)
        check_same(tables, peers)
        own = dealt(federation.sizes, peers)
        begin = begin_at(folder, tables, given, own)
        if folder is not None:
            tables[RECORD] = folder.settings()[RECORD]  # of a run that goes on, what it was made with
            if late := joined_after(tables):
                plan = affordable(replace(plan, joined_after=late), algorithm, federation)
        if plan.privacy is not None and isinstance(federation, RemoteFederation):
            plan = replace(plan, secret=secret_of(folder, begin, checkpoint_every))
        data = plan.data(federation)
        problems = Problems(data, model.to(place), place, plan.streaming, algorithm.labels)
        if begin is None:
            begin = Checkpoint(0, algorithm.init_shared(model, problems.outputs, seed), {})
        stored = None if own.all() else elsewhere(federation, own)
        if folder is not None and (states == "disk" or stored is not None):
            stored = folder.state
        kept = kept_states(data, model, algorithm, seed, begin, stored, in_memory=states == "memory")
        together = plan.network.lossless and plan.exchange(algorithm, federation).sums
        here = LocalEngine(
            problems,
            algorithm,
            kept,
            transforms,
            together,
            training=evaluate_training,
            compression=plan.compression,
        )
        with _worker(engine, here, peers, own) as worker:
            run = Run(
                problems=problems,
                algorithm=algorithm,
                plan=plan,
                shared=to(begin.shared, place),
                states=kept,
                settings=tables,
                engine=worker
                if isinstance(federation, RemoteFederation)
                else here,  # answers what is asked of the run
                history=begin.history,
                evaluations=everybodys(begin.evaluations, len(federation)),
                rejected=begin.rejections(federation.ids),
                silent=begin.silences(federation.ids),
                folder=None if folder is None else folder.path,
            )
            training = Training(
                run,
                worker,
                kept,
                to(begin.server, place),
                folder,
                own,
                checkpoint_every,
                keep,
                lambda changed: check_together(changed, algorithm),
            )
            if begin.round == 0 and inputs is not None:
                training.warn()
            training.rounds(begin.round + 1, _watchers(callbacks, progress) if peers.first else [])
    return run


def may_change() -> set[str]:
    """Name the settings that may differ when a run is resumed."""
    return {name for name, one in declared(train).items() if one.may_change}


def _watchers(callbacks: Sequence[Callback], progress: bool | None) -> list[Callback]:
    shown = progress or (progress is None and Progress.in_terminal())
    return [*callbacks, *([Progress()] if shown else [])]


@contextmanager
def _worker(
    engine: EngineName | EngineMaker, here: LocalEngine, peers: Peers, own: npt.NDArray[np.bool_]
) -> Iterator[Engine]:
    """Give the engine that was asked for, for as long as the run lasts."""
    if callable(engine):
        with calling(f"engine {named(engine)} failed", SettingError):
            made = engine(here.problems, here.algorithm, here.states)
        if not isinstance(made, Engine) or isinstance(made, type):
            raise SettingError(f"engine {named(engine)} must give a pflego Engine, not {shortened(made)}")
        yield made
    elif engine == "flower-simulation":
        from pflego.engines.simulation import simulation

        with simulation(here) as simulated:
            yield simulated
    elif engine == "distributed":
        yield DistributedEngine(here, peers, own)
    else:
        yield here
