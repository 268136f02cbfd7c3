"""How a federation comes together: who is admitted when a run begins, and who is from then on."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Sequence

from pflego.codec import some
from pflego.deploy.flower.app_config import Deployment
from pflego.deploy.flower.facts import Common, Facts
from pflego.deploy.flower.roll import Present, Roll
from pflego.errors import UserError
from pflego.federation.members import Member, Members
from pflego.federation.population import Population
from pflego.federation.roster import ClientId

log = logging.getLogger("flwr.pflego")


_LARGEST = 2**53  # whole numbers up to here are the same for everybody


def settle(
    present: Sequence[Present], deployment: Deployment, population: Population | None = None
) -> Members:
    """Make a federation of those who are there. population: who of them goes, and who comes, later."""
    ordered = in_order(present)
    first = ordered[0].facts
    classes = sorted({c for one in ordered for c in one.facts.classes})
    claimed = [one.facts.claimed for one in ordered]
    if sum(claimed) > _LARGEST:
        raise UserError(f"the clients claim {sum(claimed):g} samples in all: set max_samples to what can be")
    counted = capped(claimed, deployment.max_share)
    for one, count in zip(ordered, counted, strict=True):
        if count < one.facts.claimed:
            log.warning(
                "client %r says it has %.10g of %.10g samples, and counts for %.10g: max_share is %g",
                one.facts.client, one.facts.claimed, sum(claimed), count, deployment.max_share,
            )  # fmt: skip
    return Members(
        secrets.token_hex(8),
        tuple(member(one, count, deployment) for one, count in zip(ordered, counted, strict=True)),
        task=first.task,
        classes=tuple(classes),
        most_classes=max(len(one.facts.classes) for one in ordered),
        outputs=len(classes) or first.outputs,
        shape=first.shape,
        dtype=first.dtype,
        schema=first.schema,
        unit=first.unit,
        founders=len(ordered),
        population=None if population is None else Population(steps=population.steps),
    )


def in_order(present: Iterable[Present]) -> list[Present]:
    """Sort clients by their ids, numbers first."""
    return sorted(present, key=lambda one: (isinstance(one.facts.client, str), one.facts.client))


def member(present: Present, counted: float, deployment: Deployment) -> Member:
    """Make a member of somebody who is there, and counts for so many samples, or so large a sum of weights."""
    key = present.connection.key if deployment.pin_keys else ""
    facts = present.facts
    return Member(facts.client, facts.samples, counted=counted, tests=facts.tests, key=key, mass=facts.mass)


def capped(samples: Sequence[float], share: float) -> list[float]:
    """Lower the largest counts until none is more than a share of their sum; of two, one always has half.

    Whole numbers stay whole; sums of weights need not be.

    >>> capped([10, 10, 1000], 0.5), capped([3, 1], 0.5), capped([5, 5, 5], 0.1)
    ([10, 10, 20], [3, 1], [5, 5, 5])
    >>> capped([0.25, 0.5, 5.0], 0.5)
    [0.25, 0.5, 0.75]
    """
    if len(samples) < 3:
        return list(samples)
    if share * len(samples) <= 1:  # no more than everybody alike can be had
        return [min(samples)] * len(samples)
    limit, rest = 0.0, sum(samples)
    for lowered, largest in enumerate(sorted(samples, reverse=True)):
        limit = share * rest / (1 - lowered * share)  # c = share (lowered c + rest)
        if largest <= limit + 1e-9:
            break
        rest -= largest
    if all(isinstance(count, int) for count in samples):
        limit = max(1, int(limit + 1e-9))
    return [min(count, limit) for count in samples]


def admit(members: Members, present: Present) -> None:
    """Refuse who does not belong to a federation, or is not what it was."""
    facts = present.facts
    found = [member for member in members.clients if member.id == facts.client]
    if not found:
        raise UserError(
            f"client {facts.client!r} is not part of this federation: `pflego deploy member join` lets it in"
        )
    [member] = found
    if member.key and member.key != present.connection.key:
        raise UserError(f"client {facts.client!r} belongs to another node's key")
    if facts.samples != member.samples:
        raise UserError(
            f"client {facts.client!r} now has {facts.samples} samples and had {member.samples}: "
            f"start a new run if its data have changed"
        )
    if facts.mass != member.mass:
        raise UserError(
            f"client {facts.client!r} now has weights that sum to {facts.mass}, and had {member.mass}: "
            f"start a new run if its data have changed"
        )
    if facts.tests != member.tests:
        raise UserError(f"client {facts.client!r} now has {facts.tests} test samples and had {member.tests}")
    if (facts.shape, facts.dtype) != (members.shape, members.dtype):
        raise UserError(f"client {facts.client!r} now has inputs of another kind")
    Common.of(members).check(facts)


def check_claims(facts: Facts, deployment: Deployment) -> None:
    """Refuse a client that says of itself what the operator does not believe."""
    known, (most, said_by) = deployment.known_classes, deployment.most_samples(facts.client)
    if max(facts.samples, facts.tests, facts.claimed) > most:
        weights = "" if facts.mass is None else f", with weights that sum to {facts.mass:g},"
        raise UserError(
            f"client {facts.client!r} says it has {facts.samples} samples{weights} and {facts.tests} for tests: "
            f"{said_by} allows {most}"
        )
    if known is not None and (others := [one for one in facts.classes if one not in known]):
        raise UserError(
            f"client {facts.client!r} has the classes {some(others)}, and classes are {deployment.classes}"
        )


def begins(client: ClientId, population: Population | None) -> bool:
    """Tell whether a client is a member from the first round on."""
    return population is None or bool(population.there([client], number=1, seed=0)[0])


def gather(
    roll: Roll, deployment: Deployment, population: Population | None = None, *, poll: float
) -> Members:
    """Wait until all who are needed are there, and make a federation of them; nobody waits for those who come later."""
    wanted = [name for name in deployment.names if begins(name, population)]
    end = time.monotonic() + deployment.wait
    claims: dict[str, str] = {}  # with which key somebody first called itself what

    def admit(present: Present) -> None:
        client, key = present.facts.client, present.connection.key
        if wanted and str(client) not in wanted:
            raise UserError(f"client {client!r} is not among those this run is for")
        if not begins(client, population):
            raise UserError(f"client {client!r} comes later")
        check_claims(present.facts, deployment)
        if deployment.pin_keys and claims.setdefault(str(client), key) != key:
            raise UserError(f"client {client!r} is there already, with another key")

    roll.only(admit)
    while True:
        here = list(roll.call().values())
        alike = _largest_group(here)
        names = {str(one.facts.client) for one in alike}
        enough = names >= set(wanted) if wanted else len(alike) >= deployment.min_clients
        late = time.monotonic() > end
        if enough and (late or not roll.waiting):
            for one in (one for one in here if one not in alike):
                log.warning("%s", _difference(one, alike[0]))
            return settle(alike, deployment, population)
        if late:
            needed = ", ".join(sorted(set(wanted) - names)) if wanted else f"{deployment.min_clients} in all"
            odd = next((f"; {_difference(one, alike[0])}" for one in here if one not in alike), "")
            raise UserError(
                f"after {deployment.wait:g} seconds {len(alike)} clients are here that fit together, "
                f"and still needed are {needed}{odd}"
            )
        time.sleep(poll)


def _largest_group(here: Sequence[Present]) -> list[Present]:
    """Find the largest group that agrees on what a sample is: nobody alone can shut out the others."""
    groups: dict[object, list[Present]] = {}
    for one in here:
        groups.setdefault(tuple(kind(one.facts).values()), []).append(one)
    return max(groups.values(), key=len, default=[])


def kind(facts: Facts | Members) -> dict[str, object]:
    """Map name to value for all that members must agree on."""
    return {
        "task": facts.task,
        "shape of a sample": facts.shape,
        "type of inputs": facts.dtype,
        "number of targets": facts.outputs if facts.task == "regression" else 0,
        "schema": facts.schema or "none",
        "unit of targets": facts.unit,
    }


def _difference(one: Present, other: Present) -> str:
    mine, theirs = kind(one.facts), kind(other.facts)
    what = next(what for what in mine if mine[what] != theirs[what])
    return (
        f"clients {one.facts.client!r} and {other.facts.client!r} differ in the {what}: "
        f"{mine[what]} and {theirs[what]}"
    )
