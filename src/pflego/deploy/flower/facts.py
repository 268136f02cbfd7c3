"""What a client says of itself, and what everybody knows of the federation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, get_args

import torch

from pflego.codec import MessageError, Reader, some
from pflego.data.schema import Schema
from pflego.errors import SettingError
from pflego.federation.roster import Client, ClientId
from pflego.learning.task import TaskName

if TYPE_CHECKING:
    from pflego.federation.members import Members  # the server's list: a site never sees it

_LONGEST_ID = 80  # characters: ids are parts of file names
_MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class Facts:
    """What a client says of itself when it is asked who it is, and nothing else."""

    client: ClientId
    samples: int  # for training
    tests: int  # samples that its model is tried on
    task: TaskName
    classes: tuple[int, ...]  # by their ids in the whole federation; none in regression
    outputs: int  # of a model for this client alone
    shape: tuple[int, ...]  # of one sample
    dtype: str  # of its inputs
    schema: str  # a digest of how its values became tensors; empty: they were numbers already
    unit: float  # what 1 stands for in its targets; 1 in classification
    mass: float | None = None  # the sum of its samples' weights; None: they have none

    @property
    def said(self) -> dict[str, object]:
        """What leaves the client: of weights nothing, where it has none."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def claimed(self) -> float:
        """How much it says it counts: by its samples, or by the sum of their weights."""
        return self.samples if self.mass is None else self.mass

    @classmethod
    def of(cls, client: Client, schema: Schema | None, known: Collection[int] | None = None) -> Facts:
        """Collect the facts of a client that is here.

        known: the classes that there are, where nothing that only this client's data say may be told: neither its own
        nor how many samples it has; None: all may be.
        """
        own = tuple(client.classes.tolist())
        if known is not None and (others := sorted(set(own) - set(known))):
            raise SettingError(
                f"under privacy a site does not say which classes it has: the app names all that there are, as "
                f'classes="0-9", and {some(others)} of these data are not among them'
            )
        classes = own if known is None or not own else tuple(sorted(known))
        return cls(
            client.id,
            samples=len(client.x_train) if known is None else 1,
            tests=len(client.x_test) if known is None else 0,
            task="classification" if classes else "regression",
            classes=classes,
            outputs=len(classes) or client.y_train[:1].numel(),
            shape=tuple(client.x_train.shape[1:]),
            dtype=str(client.x_train.dtype).removeprefix("torch."),
            schema="" if schema is None else schema.digest,
            unit=1.0 if schema is None else schema.label_scale,
            mass=client.mass if client.weights is not None and known is None else None,
        )

    @classmethod
    def read(cls, read: Reader) -> Facts:
        """Take what a client says of itself, checked."""
        classes = read.numbers("classes", least=0)
        facts = cls(
            check_id(read.client("client")),
            samples=read.whole("samples", least=1),
            tests=read.whole("tests", least=0),
            task=read.choice("task", get_args(TaskName)),  # type: ignore[arg-type]
            classes=classes,
            outputs=read.whole("outputs", least=1),
            shape=read.numbers("shape", least=1),
            dtype=read.text("dtype"),
            schema=_digest(read),
            unit=read.finite("unit", least=0),
            mass=read.finite("mass", least=0) if "mass" in read.facts else None,
        )
        if facts.mass == 0:
            raise MessageError("its weights sum to 0")
        if len(classes) > _MOST_CLASSES or list(classes) != sorted(set(classes)):
            raise MessageError("its classes are not in ascending order, each once")
        if (facts.task == "classification") != bool(classes):
            raise MessageError(f"its task is {facts.task}, with {len(classes)} classes")
        if not isinstance(getattr(torch, facts.dtype, None), torch.dtype):
            raise MessageError(f"its inputs are of the unknown type {facts.dtype[:40]!r}")
        return facts


@dataclass(frozen=True)
class Common:
    """What everybody in a federation knows of it: what a model that all share looks like."""

    run: str  # names this training and no other
    clients: int
    samples: int  # for training, of all
    task: TaskName
    classes: tuple[int, ...]  # all of them; none in regression
    most_classes: int  # of one client; 0 in regression
    outputs: int
    schema: str  # a digest of how everybody's values become tensors; empty: they are numbers already
    base: str = ""  # a digest of the weights that are frozen, and so never sent; empty: none are

    @classmethod
    def of(cls, members: Members, base: str = "") -> Common:
        """Say what everybody may know of a federation, and of the frozen weights of its model."""
        return cls(
            members.run,
            clients=len(members.clients),
            samples=sum(member.samples for member in members.clients),
            task=members.task,
            classes=members.classes,
            most_classes=members.most_classes,
            outputs=members.outputs,
            schema=members.schema,
            base=base,
        )

    @classmethod
    def read(cls, read: Reader) -> Common:
        """Take what is said of the federation, checked."""
        run = read.text("run")
        if not run.isalnum() or len(run) > _LONGEST_ID:
            raise MessageError(f"its run is called {run[:40]!r}, not by letters and digits")
        return cls(
            run,
            clients=read.whole("clients", least=1),
            samples=read.whole("samples", least=1),
            task=read.choice("task", get_args(TaskName)),  # type: ignore[arg-type]
            classes=read.numbers("classes", least=0),
            most_classes=read.whole("most_classes", least=0),
            outputs=read.whole("outputs", least=1),
            schema=_digest(read),
            base=_digest(read, "base") if "base" in read.facts else "",
        )

    def check_base(self, own: str) -> None:
        """Refuse to work with other frozen weights than the server's."""
        if self.base and own != self.base:
            raise MessageError(
                f"the frozen weights of this site's model are not the server's (digest {own[:8] or 'none'}, not "
                f"{self.base[:8]}): all need the same file; pretrained=... in the node config names it"
            )

    def check(self, facts: Facts) -> None:
        """Refuse a federation that a client cannot be part of."""
        if facts.task != self.task:
            raise MessageError(f"the federation does {self.task}, and these data are for {facts.task}")
        if facts.schema != self.schema:
            raise MessageError(
                "the federation reads its data by another schema: all sites need the same file"
            )
        if not set(facts.classes) <= set(self.classes) or len(facts.classes) > self.most_classes:
            raise MessageError(f"the federation's classes {some(self.classes)} are not those of these data")
        if self.task == "regression" and facts.outputs != self.outputs:
            raise MessageError(
                f"the federation has {self.outputs} targets per sample, these data {facts.outputs}"
            )
        if self.samples < facts.samples:
            raise MessageError(f"the federation has {self.samples} samples, fewer than this client alone")


def classes_in(text: str) -> frozenset[int]:
    """Read a list of classes.

    >>> sorted(classes_in("0, 3, 5-7"))
    [0, 3, 5, 6, 7]
    """
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, _, last = part.partition("-")
        try:
            low, high = int(first), int(last or first)
        except ValueError:
            low, high = 0, -1
        if not 0 <= low <= high < low + _MOST_CLASSES:
            raise SettingError(f'classes must be numbers such as "0-9" or "0, 3, 5-7", not {text!r}')
        found |= set(range(low, high + 1))
    return frozenset(found)


def check_id(client: ClientId) -> ClientId:
    """Refuse an id that could not be part of a file's name or of a line in a log."""
    if isinstance(client, str) and not (0 < len(client) <= _LONGEST_ID and client.isprintable()):
        raise MessageError(f"a client's id is 1 to {_LONGEST_ID} printable characters, not {client[:40]!r}")
    return client


def _digest(read: Reader, name: str = "schema") -> str:
    digest = read.text(name)
    if digest and not (digest.isalnum() and len(digest) <= _LONGEST_ID):
        raise MessageError(f"its {name} is {digest[:40]!r}, no digest")
    return digest
