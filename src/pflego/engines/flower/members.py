"""Who makes up the federation: settled when a run begins, written down, and held to from then on.

federation.json in the server's folder says who belongs to it. A resumed server reads it there and need not wait until
all are back; a node that says otherwise than it did is turned away.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pflego.data.schema import TaskName
from pflego.engines.flower.facts import Common, Facts
from pflego.engines.flower.roll import Present, Roll
from pflego.engines.flower.settings import Deployment
from pflego.errors import FolderError, UserError
from pflego.federation import ClientId, Federation
from pflego.files import make_folder, write_atomically

_FILE = "federation.json"

log = logging.getLogger("flwr.pflego")


@dataclass(frozen=True)
class Member:
    """One of the federation's clients."""

    id: ClientId
    samples: int
    key: str  # a digest of its node's public key; empty: any node may speak for it


@dataclass(frozen=True)
class Members:
    """All of them, in the order of their ids, and what they agree on."""

    run: str
    clients: tuple[Member, ...]
    task: TaskName
    classes: tuple[int, ...]
    most_classes: int
    outputs: int
    shape: tuple[int, ...]
    dtype: str
    schema: str
    unit: float

    @classmethod
    def of(cls, present: Sequence[Present], *, pin_keys: bool) -> Members:
        """Make a federation of those who are there."""
        ordered = sorted(present, key=lambda p: (isinstance(p.facts.client, str), p.facts.client))
        first = ordered[0].facts
        classes = sorted({c for one in ordered for c in one.facts.classes})
        return cls(
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

    @classmethod
    def load(cls, folder: Path) -> Members | None:
        """Read who belongs to the run in a folder; None if there is none yet."""
        path = folder / _FILE
        try:
            if not path.exists():
                return None
            read = json.loads(path.read_text())
            clients = tuple(Member(**client) for client in read.pop("clients"))
            classes, shape = tuple(read.pop("classes")), tuple(read.pop("shape"))
            return cls(clients=clients, classes=classes, shape=shape, **read)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FolderError(f"{path} cannot be read and was left as it is: {error}") from error

    def save(self, folder: Path) -> None:
        """Write it down."""
        make_folder(folder)
        write_atomically(folder / _FILE, json.dumps(asdict(self), indent=1).encode())

    def federation(self) -> Federation:
        """The federation as the round loop knows it: its data are elsewhere."""
        return Federation.elsewhere(
            [member.id for member in self.clients],
            sizes=[member.samples for member in self.clients],
            classes=self.classes or None,
            outputs=self.outputs,
            most_classes=self.most_classes or None,
            unit=self.unit,
        )

    @property
    def common(self) -> Common:
        """What everybody may know."""
        return Common(
            self.run,
            clients=len(self.clients),
            samples=sum(member.samples for member in self.clients),
            task=self.task,
            classes=self.classes,
            most_classes=self.most_classes,
            outputs=self.outputs,
            schema=self.schema,
        )

    def admit(self, present: Present) -> None:
        """Refuse who does not belong here, or is not what it was."""
        facts = present.facts
        found = [member for member in self.clients if member.id == facts.client]
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
        if (facts.shape, facts.dtype) != (self.shape, self.dtype):
            raise UserError(f"client {facts.client!r} now has inputs of another kind")
        self.common.check(facts)


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
            return Members.of(alike, pin_keys=deployment.pin_keys)
        if late:
            needed = ", ".join(sorted(set(wanted) - names)) if wanted else f"{deployment.min_clients} in all"
            odd = next((f"; {_difference(one, alike[0])}" for one in here if one not in alike), "")
            raise UserError(
                f"after {deployment.wait:g} seconds {len(alike)} clients are here that fit together, "
                f"and still needed are {needed}{odd}"
            )
        time.sleep(poll)


def _largest_group(here: Sequence[Present]) -> list[Present]:
    """Those who agree on what a sample is: the most of them, so that nobody alone can shut out the others."""
    groups: dict[object, list[Present]] = {}
    for one in here:
        groups.setdefault(tuple(_kind(one.facts).values()), []).append(one)
    return max(groups.values(), key=len, default=[])


def _kind(facts: Facts) -> dict[str, object]:
    """All that members must agree on, by what it is called."""
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
