"""Who makes up a federation whose clients are elsewhere: settled when a run begins, written down, held to from then on.

federation.json in the server's folder says who belongs to it, and who of them was there when: before a round is played
it says who is a member in it, so that a round that is played again is that of the same members.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pflego.errors import FolderError, UserError
from pflego.federation.client import ClientId
from pflego.federation.population import Population, population_of
from pflego.federation.remote import RemoteFederation
from pflego.files import make_folder, write_atomically
from pflego.learning.task import TaskName

_FILE = "federation.json"


@dataclass(frozen=True)
class Member:
    """One of the federation's clients."""

    id: ClientId
    samples: int  # as it said when it joined
    counted: float  # of them, how many it counted for then; or of the sum of their weights
    tests: int  # samples that its model is tried on
    key: str  # a digest of its node's public key; empty: any node may speak for it
    mass: float | None = None  # the sum of its samples' weights, as it said; None: they have none

    @property
    def claimed(self) -> float:
        """How much it said it counts: by its samples, or by the sum of their weights."""
        return self.samples if self.mass is None else self.mass


@dataclass(frozen=True)
class Members:
    """All of them, those who began in the order of their ids, then as they came; and what they agree on."""

    run: str  # names this training and no other
    clients: tuple[Member, ...]
    task: TaskName
    classes: tuple[int, ...]
    most_classes: int
    outputs: int
    shape: tuple[int, ...]
    dtype: str
    schema: str
    unit: float
    founders: int  # how many of the clients began
    population: Population | None = None  # who was there when; None: everybody, all along
    settled: int = 0  # the last round whose members are decided
    requests: Population = field(
        default_factory=Population
    )  # by round, what the operator asked for meanwhile
    heard: int = 0  # how many requests that were

    @classmethod
    def load(cls, folder: Path) -> Members | None:
        """Read who belongs to the run in a folder; None if there is none yet."""
        path = folder / _FILE
        try:
            if not path.exists():
                return None
            read = json.loads(path.read_text())
            read["clients"] = tuple(Member(**client) for client in read["clients"])
            for name in ("classes", "shape"):
                read[name] = tuple(read[name])
            for name in ("population", "requests"):
                read[name] = population_of(read[name])
            return cls(**read)
        except (OSError, ValueError, TypeError, KeyError, UserError) as error:
            raise FolderError(f"{path} cannot be read and was left as it is: {error}") from error

    def save(self, folder: Path) -> None:
        """Write it down."""
        make_folder(folder)
        plain = {**vars(self), "clients": [asdict(client) for client in self.clients]}
        for name in ("population", "requests"):
            plain[name] = None if plain[name] is None else json.loads(str(plain[name]))
        write_atomically(folder / _FILE, json.dumps(plain, indent=1).encode())

    def there(self, number: int) -> list[Member]:
        """List those who are members in a round."""
        if self.population is None:
            return list(self.clients)
        there = self.population.there([client.id for client in self.clients], number=number, seed=0)
        return [client for client, here in zip(self.clients, there.tolist(), strict=True) if here]

    def enlarged(self, client: Member, classes: Collection[int]) -> Members:
        """Add a client with its classes."""
        everybodys = tuple(sorted({*self.classes, *classes}))
        return replace(
            self,
            clients=(*self.clients, client),
            classes=everybodys,
            most_classes=max(self.most_classes, len(classes)),
            outputs=len(everybodys) or self.outputs,
        )

    def federation(
        self, *, counted: Sequence[float] | None = None, awaited: Sequence[ClientId] = ()
    ) -> RemoteFederation:
        """Make the federation as the round loop knows it: its data are elsewhere.

        counted: how many samples, or what sums of weights, clients count for; if not given, those they counted for when
        they joined. awaited: who may come later.
        """
        counts = [member.counted for member in self.clients] if counted is None else counted
        weighted = any(member.mass is not None for member in self.clients)
        return RemoteFederation(
            [member.id for member in self.clients],
            sizes=[member.samples for member in self.clients] if weighted else counts,
            masses=counts if weighted else None,
            classes=self.classes or None,
            outputs=self.outputs,
            most_classes=self.most_classes or None,
            unit=self.unit,
            population=self.population,
            awaited=awaited,
            began=[member.samples for member in self.clients[: self.founders]],
        )
