"""How data of your own are to be read, and what reading them gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypeAlias

from pflego.data.blocks import Array
from pflego.data.own.holdout import TEST_SHARE, Share
from pflego.data.own.images import parse_size
from pflego.data.schema import Schema
from pflego.errors import DataError
from pflego.federation.roster import Client, ClientId
from pflego.learning.task import TaskName

Gaps: TypeAlias = Literal["refuse", "drop", "mean", "indicator"]


@dataclass(frozen=True)
class Reading:
    """How data of your own are to be read, as `pflego.load` explains it; None where it is not given."""

    label: str | None = None
    task: TaskName | None = None
    test_share: float | None = None
    drop: Sequence[str] | None = None
    category: Sequence[str] | None = None
    ordered: Sequence[str] | None = None
    date: Sequence[str] | None = None
    weight: str | None = None
    scale: bool | None = None
    gaps: Gaps | None = None
    size: int | str | None = None
    schema: str | Path | Schema | None = None

    def __post_init__(self) -> None:
        parse_size(self.size)

    @property
    def share(self) -> float:
        """Of each client's samples, for testing."""
        return TEST_SHARE if self.test_share is None else self.test_share

    def known(self) -> Schema | None:
        """Return the schema that others have made, if one is named."""
        if self.schema is None or isinstance(self.schema, Schema):
            return self.schema
        return Schema.open(self.schema)

    def settings(self, **resolved: object) -> dict[str, object]:
        """Return what was asked for and what became of it, as far as it can be written down."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.schema, Schema):
            del given["schema"]
        else:
            given["schema"] = None if self.schema is None else str(self.schema)
        for name in ("drop", "category", "ordered", "date"):
            given[name] = None if given[name] is None else list(given[name])
        return {key: value for key, value in {**given, **resolved}.items() if value is not None}

    def refuse_all(self, why: str) -> None:
        """Refuse them all."""
        self.refuse([field.name for field in fields(self)], why)

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Refuse settings that do not apply."""
        for name in names:
            if getattr(self, name) is not None:
                raise DataError(f"{name} is {why}: leave it out")


@dataclass(frozen=True)
class Pool:
    """Samples that are ready: client by client or, where nothing says whose they are, all in one."""

    name: str
    ids: Sequence[ClientId] | None
    shares: Sequence[Share]
    schema: Schema
    settings: Mapping[str, object]
    left_out: Sequence[str] = ()  # clients that are there, but not among these
    weights: Sequence[Array] | None = None  # of each share's training samples; None: all count alike

    def client(self, position: int, client_id: ClientId) -> Client:
        """Make a client of one share."""
        weights = None if self.weights is None else self.weights[position]
        return Client(client_id, *self.shares[position], weights=weights)

    def only(self, stay: Sequence[int], left_out: Sequence[str]) -> Pool:
        """Give the same without the clients that are left out."""
        return replace(
            self,
            ids=None if self.ids is None else [self.ids[k] for k in stay],
            shares=[self.shares[k] for k in stay],
            left_out=tuple(left_out),
            weights=None if self.weights is None else [self.weights[k] for k in stay],
        )
