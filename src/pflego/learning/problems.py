"""The problems of all clients of a federation, each made when it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from pflego.federation.roster import Client, Federation
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.learning.streaming import Labels, LabelSpace, Streaming
from pflego.learning.task import Task
from pflego.learning.trunk import BeyondTrunk, Trunk
from pflego.learning.weighted import Weighted


@dataclass(frozen=True)
class Problems:
    """The problems of a federation's clients, made when they are asked for."""

    federation: Federation
    model: Model
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    streaming: Streaming = Streaming()
    labels: Labels = "own"
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[Problems], tuple[object, ...]]:
        """Made again where it is sent: a lock cannot be."""
        return Problems, (self.federation, self.model, self.device, self.streaming, self.labels)

    @cached_property
    def _space(self) -> LabelSpace:
        classes = torch.tensor(self.federation.classes or [], dtype=torch.long)
        return LabelSpace(self.labels, classes, self.federation.most_classes)

    @property
    def trunk(self) -> Trunk | None:
        """The frozen beginning of the model, where its outputs are kept."""
        return self.model.trunk if self.streaming.trunk == "once" else None

    @property
    def trained(self) -> Model:
        """The model that clients' samples go through in every pass."""
        return self.model if self.trunk is None else self.trunk.rest

    @property
    def outputs(self) -> int:
        """How many outputs a model that everybody shares has."""
        if self.labels == "local" and self.federation.most_classes:
            return self.federation.most_classes
        return self.federation.outputs

    def size(self, positions: Sequence[int]) -> float:
        """Estimate the work of a pass over the data of some clients: multiplications, in a dense network."""
        return float(self.federation.sizes[positions].sum()) * sum(self.model.sizes.values())

    def __getitem__(self, position: int) -> Problem:
        """Give the problem of the client at a position; behind the trunk, where there is one."""
        whole = self.whole(position)
        return whole if self.trunk is None else self._problem(BeyondTrunk(self.trunk, whole), self.trained)

    def whole(self, position: int) -> Problem:
        """Give the problem of the client at a position, with the whole backbone."""
        with self._lock:  # whoever loads clients need not do it for two threads at once
            client = self.federation[position]
        return self._problem(client, self.model)

    def _problem(self, client: Client, model: Model) -> Problem:
        task: Task = Weighted(self.federation.task) if self.federation.weighted else self.federation.task
        return Problem(client, model, task, self.device, space=self._space, streaming=self.streaming)
