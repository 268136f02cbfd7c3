"""How samples go through a backbone, and what a model's outputs stand for: settings that a problem is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pflego.declaration import Whole, check_fields
from pflego.learning.memory import Memory, memory_of

Speedup: TypeAlias = Literal["auto", "gram", "none"]
TrunkPasses: TypeAlias = Literal["once", "always"]
Labels: TypeAlias = Literal["own", "local", "global"]


@dataclass(frozen=True)
class LabelSpace:
    """What a model's outputs stand for.

    labels="own": each client's head has one output for each of its classes. "local": all have as many outputs as
    the client with the most classes, numbered anew on every client, so that an output means different things to
    different clients. "global": one output for every class of the federation, with one meaning.
    """

    labels: Labels = "own"
    everybodys: Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.long)
    )  # the federation's classes
    most_classes: int | None = None  # of one client; None in regression


@dataclass(frozen=True)
class Streaming:
    """How samples go through the backbone, for the same result.

    Parameters
    ----------
    slice_size
        Samples that go through it at a time; None: as is fastest, which is a client's all at once, or 32 images where
        there are convolutions.
    memory
        What a client may take up while it works: 256MB, a number of bytes, or unlimited. Activations that do not fit
        are computed again on the way back (memory.py).
    speedup
        Whether full steps through a first dense layer are taken in the span of a client's samples (gram.py): "auto",
        where that is cheaper and memory suffices; "gram", where memory does; "none".
    trunk
        "once": what a frozen beginning of the backbone makes of a client's samples is kept for all rounds (trunk.py).
    """

    slice_size: Whole | None = None
    memory: str | float = "1GB"
    speedup: Speedup = "auto"
    trunk: TrunkPasses = "once"

    def __post_init__(self) -> None:
        check_fields(self)
        memory_of(self.memory)

    @cached_property
    def budget(self) -> Memory:
        """What a client may take up."""
        return memory_of(self.memory)
