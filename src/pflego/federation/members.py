"""Who makes up a federation whose clients are elsewhere: settled when a run begins, written down, held to from then on.

federation.json in the server's folder says who belongs to it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pflego.errors import FolderError
from pflego.federation.client import ClientId
from pflego.federation.remote import RemoteFederation
from pflego.files import make_folder, write_atomically
from pflego.learning.task import TaskName

_FILE = "federation.json"


@dataclass(frozen=True)
class Member:
    """One of the federation's clients."""

    id: ClientId
    samples: int  # as it said when it joined
    counted: int  # of them, how many it counts for
    tests: int  # samples that its model is tried on
    key: str  # a digest of its node's public key; empty: any node may speak for it


@dataclass(frozen=True)
class Members:
    """All of them, in the order of their ids, and what they agree on."""

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

    def federation(self) -> RemoteFederation:
        """Make the federation as the round loop knows it: its data are elsewhere."""
        return RemoteFederation(
            [member.id for member in self.clients],
            sizes=[member.counted for member in self.clients],
            classes=self.classes or None,
            outputs=self.outputs,
            most_classes=self.most_classes or None,
            unit=self.unit,
        )
