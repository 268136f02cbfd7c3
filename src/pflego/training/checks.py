"""What `train` refuses before anything is trained."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pflego.algorithms.base import Algorithm
from pflego.engines.peers import Peers
from pflego.errors import SettingError, UserError, shortened
from pflego.exchange.robust import Median, TrimmedMean
from pflego.federation.draws import Unequal
from pflego.federation.remote import RemoteFederation
from pflego.federation.roster import Federation, check_federation
from pflego.learning.model import Model
from pflego.runs.plan import Plan
from pflego.runs.privacy import accountant_of
from pflego.runs.record import Tables, differences
from pflego.training.callbacks import Callback
from pflego.training.loop import PrivacyWarning


def check_given(given: Mapping[str, object]) -> None:
    """Refuse arguments that are not what they should be, and those that do not go together."""
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


def check_together(plan: Plan, algorithm: Algorithm) -> None:
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


def check_liars(plan: Plan, federation: Federation, engine: object) -> None:
    """Refuse liars where there are none to simulate, or where they cannot know of each other."""
    if plan.liars is None:
        return
    if isinstance(federation, RemoteFederation):
        raise SettingError("liars= is for simulations: sites on Flower are as honest as they are")
    if plan.liars.conspire and engine == "distributed":
        raise SettingError(
            f"liars={plan.liars} know each other's work, and under the engine 'distributed' that is in several "
            "processes: take engine='local'"
        )


def check_same(tables: Tables, peers: Peers) -> None:
    """Refuse processes that were given different things."""
    first, *_ = peers.gather(tables)
    if first != tables:
        raise UserError(
            f"process {peers.rank} was not given what process 0 was: {'; '.join(differences(first, tables))}; "
            "weights and data that are drawn at random need the same seed everywhere"
        )


def affordable(plan: Plan, algorithm: Algorithm, federation: Federation) -> Plan:
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
