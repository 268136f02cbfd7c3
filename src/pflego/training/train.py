"""train(): from a federation, a model and a method to a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pflego.algorithms.base import Algorithm
from pflego.algorithms.registry import spelling
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
from pflego.errors import FolderError, SettingError, UserError, calling, named, shortened
from pflego.exchange import aggregation as rules
from pflego.exchange.aggregation import Aggregation, Mean, aggregation_of
from pflego.exchange.compression import Compression, compression_of
from pflego.exchange.liars import Liars, liars_of
from pflego.exchange.objective import Objective, objective_of
from pflego.exchange.privacy import ClientPrivacy, privacy_of
from pflego.exchange.robust import Median, TrimmedMean
from pflego.exchange.transforms import Transform
from pflego.exchange.weighting import Missing, WeightingName
from pflego.federation.draws import Participation, Unequal, spelled
from pflego.federation.network import Network, Speed
from pflego.federation.participation import Everyone, participation_of
from pflego.federation.population import Population, population_of
from pflego.federation.remote import RemoteFederation
from pflego.federation.roster import ClientId, Federation, check_federation
from pflego.learning import device as devices
from pflego.learning.model import Model
from pflego.learning.problem import Problems, Speedup, Streaming
from pflego.runs.folder import Checkpoint, RunFolder
from pflego.runs.history import everybodys
from pflego.runs.plan import Plan
from pflego.runs.privacy import accountant_of, check_private
from pflego.runs.record import RECORD, Table, Tables, differences, in_table, joined_after, record
from pflego.runs.run import Run
from pflego.runs.states import States
from pflego.training.callbacks import Callback
from pflego.training.loop import PrivacyWarning, Training
from pflego.training.progress import Progress
from pflego.weights import Weights, to

EngineName: TypeAlias = Literal["local", "distributed", "flower-simulation"]
Stored: TypeAlias = Callable[[ClientId], Weights | None]  # reads a client's state, where there is one

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
    speedup: Speedup = "none",
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
        Whose loss counts how much: by samples, as in the paper, or every client equal.
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
        gram: full steps through a first dense layer in the span of a client's samples, where that is cheaper. They are
        the same steps of FedAvg and its kin, about twice as fast on images.
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
    _check(given)
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
        streaming=Streaming(None if slice_size is None else int(slice_size), memory, speedup),
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
    _check_together(plan, algorithm)
    if plan.liars is not None and isinstance(federation, RemoteFederation):
        raise SettingError("liars= is for simulations: sites on Flower are as honest as they are")
    if plan.liars is not None and plan.liars.conspire and engine == "distributed":
        raise SettingError(
            f"liars={plan.liars} know each other's work, and under the engine 'distributed' that is in several "
            "processes: take engine='local'"
        )
    algorithm.check_model(model)
    plan = _affordable(plan, algorithm, federation)
    place = devices.resolve(device, model.dtype)
    if (inputs := federation.some_inputs(_CHECK_SAMPLES)) is not None:
        model.check(inputs)
    with joined(engine == "distributed") as peers, _held(out, peers) as folder:
        tables = _tables(given, plan)
        _check_same(tables, peers)
        own = dealt(federation.sizes, peers)
        begin = _begin(folder, tables, given, own)
        if folder is not None:
            tables[RECORD] = folder.settings()[RECORD]  # of a run that goes on, what it was made with
            if late := joined_after(tables):
                plan = _affordable(replace(plan, joined_after=late), algorithm, federation)
        if plan.privacy is not None and isinstance(federation, RemoteFederation):
            plan = replace(plan, secret=_secret(folder, begin, checkpoint_every))
        data = plan.data(federation)
        problems = Problems(data, model.to(place), place, plan.streaming, algorithm.labels)
        if begin is None:
            begin = Checkpoint(0, algorithm.init_shared(model, problems.outputs, seed), {})
        stored = None if own.all() else _elsewhere(federation, own)
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
                lambda changed: _check_together(changed, algorithm),
            )
            if begin.round == 0 and inputs is not None:
                training.warn()
            training.rounds(begin.round + 1, _watchers(callbacks, progress) if peers.first else [])
    return run


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
    kept.update(
        {client: begin.states[str(client)] for client in federation.ids if str(client) in begin.states}
    )
    return kept


def may_change() -> set[str]:
    """Name the settings that may differ when a run is resumed."""
    return {name for name, one in declared(train).items() if one.may_change}


def _check(given: dict[str, object]) -> None:
    """Refuse arguments that are not what `train` declares, and those that do not go together."""
    check_arguments(train, given)
    federation, model, algorithm = given["federation"], given["model"], given["algorithm"]
    check_federation(federation)
    if not isinstance(model, Model):
        raise SettingError(
            f"model must be a pflego.Model(backbone, features=M), not a {type(model).__name__}"
        )
    if not isinstance(algorithm, Algorithm):
        raise SettingError(f"algorithm must be a method like PFLEGO(steps=50), not {algorithm!r}")
    on_flower = given["engine"] == "flower-simulation" or isinstance(federation, RemoteFederation)
    if given["evaluate_training"] and on_flower:
        raise SettingError("evaluate_training needs the local or the distributed engine, not Flower")
    chain = given["transforms"]
    if not isinstance(chain, Sequence) or any(not callable(t) or isinstance(t, type) for t in chain):
        raise SettingError(f"transforms must be a list of objects like Clip(1.0), not {chain!r}")
    watchers = given["callbacks"]
    if not isinstance(watchers, Sequence) or any(not isinstance(one, Callback) for one in watchers):
        raise SettingError(f"callbacks must be a list of pflego.Callback, not {shortened(watchers)}")
    if given["out"] is None and given["states"] == "disk":
        raise SettingError("states='disk' needs a folder: out=..., or --out")
    if not isinstance(given["resume"], bool):
        raise SettingError(f"resume must be true or false, not {shortened(given['resume'])}")
    if given["out"] is None and given["resume"]:
        raise SettingError("to resume a run, say where it is: out=..., or --out")


def _check_together(plan: Plan, algorithm: Algorithm) -> None:
    """Refuse a method that cannot do what the plan asks of it."""
    if algorithm.needs_equal_chances and (
        plan.population is not None or isinstance(plan.participation, Unequal)
    ):
        raise SettingError(
            f"{algorithm.name} keeps a sum over all clients at the server, which is right only where all have the same "
            "chance to take part and nobody comes or goes: use another method, or participation like 20 or binomial:0.2"
        )
    sparse = plan.compression is not None and plan.compression.sparse
    if sparse and isinstance(plan.aggregation, Median | TrimmedMean):
        raise SettingError(
            f"aggregation={plan.aggregation} looks at every number by itself, and under compression={plan.compression} "
            "most clients send no such number: take quantise:8, or another rule"
        )
    if plan.objective is not None and not algorithm.follows_objectives:
        raise SettingError(
            f"objective={plan.objective} multiplies the gradient of a client's full loss by a function of that loss, "
            f"and {algorithm.name}, as it is set, sends no such gradient: use pflego, with passes=1 and all samples, "
            "or fedsgd without batch_size"
        )


def _affordable(plan: Plan, algorithm: Algorithm, federation: Federation) -> Plan:
    """Leave out the rounds that would cost more privacy than was allowed; refuse a plan without any that does not."""
    privacy, accountant = plan.privacy, accountant_of(plan, algorithm, federation)
    if privacy is None or accountant is None:
        return plan
    if privacy.delta >= 1 / len(federation):
        warnings.warn(
            f"delta={privacy.delta:g} is not below one in {len(federation)} clients: it would allow to publish all of "
            "one of them",
            PrivacyWarning,
            stacklevel=3,
        )
    last = accountant.epsilon(plan.rounds)  # also to see that it can be computed, before anything is trained
    if privacy.max_epsilon is None or last <= privacy.max_epsilon:
        return plan
    most = accountant.most_rounds(privacy.max_epsilon, plan.rounds)
    if not most:
        raise SettingError(
            f"max_epsilon={privacy.max_epsilon:g} does not even allow one round, which costs "
            f"{accountant.epsilon(1):.3g} with noise={privacy.noise:g}: take more noise; pflego theory privacy "
            "plans it"
        )
    warnings.warn(
        f"training stops after {most} of {plan.rounds} rounds: one more would cost more than "
        f"max_epsilon={privacy.max_epsilon:g}",
        PrivacyWarning,
        stacklevel=3,
    )
    return replace(plan, rounds=most)


def _secret(folder: RunFolder | None, begin: Checkpoint | None, checkpoint_every: int) -> bytes:
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


def _tables(given: dict[str, object], plan: Plan) -> Tables:
    """Give everything that was asked for, as settings.toml has it."""
    federation, model, algorithm = given["federation"], given["model"], given["algorithm"]
    assert isinstance(federation, Federation)
    assert isinstance(model, Model)
    assert isinstance(algorithm, Algorithm)
    run: Table = {}
    for name, one in declared(train).items():
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


def _watchers(callbacks: Sequence[Callback], progress: bool | None) -> list[Callback]:
    shown = progress or (progress is None and Progress.in_terminal())
    return [*callbacks, *([Progress()] if shown else [])]


def _check_same(tables: Tables, peers: Peers) -> None:
    """Refuse processes that were given different things."""
    first, *_ = peers.gather(tables)
    if first != tables:
        raise UserError(
            f"process {peers.rank} was not given what process 0 was: {'; '.join(differences(first, tables))}; "
            "weights and data that are drawn at random need the same seed everywhere"
        )


@contextmanager
def _held(out: object, peers: Peers) -> Iterator[RunFolder | None]:
    """Give the run's folder, kept from others."""
    if out is None:
        yield None
    else:
        folder = RunFolder(Path(str(out)), peers, free=may_change())
        with folder.held():
            yield folder


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


def _begin(
    folder: RunFolder | None, tables: Tables, given: dict[str, object], own: npt.NDArray[np.bool_]
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


def _elsewhere(federation: Federation, own: npt.NDArray[np.bool_]) -> Stored:
    """Refuse to give the states of other processes' clients."""

    def none(client: ClientId) -> None:
        if not own[federation.position(client)]:
            raise UserError(
                f"the state of client {client!r} is in another process: give the run a folder, out=..., "
                "and all states can be read from there"
            )

    return none
