"""How a federation comes together: who is admitted when a run begins, and who is from then on."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence

from pflego.deploy.flower.app_config import Deployment
from pflego.deploy.flower.facts import Common, Facts
from pflego.deploy.flower.roll import Present, Roll
from pflego.errors import UserError
from pflego.federation.members import Member, Members

log = logging.getLogger("flwr.pflego")


def settle(present: Sequence[Present], *, pin_keys: bool) -> Members:
    """Make a federation of those who are there."""
    ordered = sorted(present, key=lambda p: (isinstance(p.facts.client, str), p.facts.client))
    first = ordered[0].facts
    classes = sorted({c for one in ordered for c in one.facts.classes})
    return Members(
        secrets.token_hex(8),
        tuple(
            Member(one.facts.client, one.facts.samples, one.connection.key if pin_keys else "")
            for one in ordered
        ),
        task=first.task,
        classes=tuple(classes),
        most_classes=max(len(one.facts.classes) for one in ordered),
        outputs=len(classes) or first.outputs,
        shape=first.shape,
        dtype=first.dtype,
        schema=first.schema,
        unit=first.unit,
    )


def admit(members: Members, present: Present) -> None:
    """Refuse who does not belong to a federation, or is not what it was."""
    facts = present.facts
    found = [member for member in members.clients if member.id == facts.client]
    if not found:
        raise UserError(f"client {facts.client!r} is not part of this federation")
    [member] = found
    if member.key and member.key != present.connection.key:
        raise UserError(f"client {facts.client!r} belongs to another node's key")
    if facts.samples != member.samples:
        raise UserError(
            f"client {facts.client!r} now has {facts.samples} samples and had {member.samples}: "
            f"start a new run if its data have changed"
        )
    if (facts.shape, facts.dtype) != (members.shape, members.dtype):
        raise UserError(f"client {facts.client!r} now has inputs of another kind")
    Common.of(members).check(facts)


def gather(roll: Roll, deployment: Deployment, *, poll: float) -> Members:
    """Wait until all who are needed are there, and make a federation of them."""
    wanted = deployment.names
    end = time.monotonic() + deployment.wait
    claims: dict[str, str] = {}  # with which key somebody first called itself what

    def admit(present: Present) -> None:
        client, key = present.facts.client, present.connection.key
        if wanted and str(client) not in wanted:
            raise UserError(f"client {client!r} is not among those this run is for")
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
            return settle(alike, pin_keys=deployment.pin_keys)
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
        groups.setdefault(tuple(_kind(one.facts).values()), []).append(one)
    return max(groups.values(), key=len, default=[])


def _kind(facts: Facts) -> dict[str, object]:
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
    mine, theirs = _kind(one.facts), _kind(other.facts)
    what = next(what for what in mine if mine[what] != theirs[what])
    return (
        f"clients {one.facts.client!r} and {other.facts.client!r} differ in the {what}: "
        f"{mine[what]} and {theirs[what]}"
    )
