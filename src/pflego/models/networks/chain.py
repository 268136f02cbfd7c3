"""A network as a sequence of its parts, so that a frozen beginning can be told from the rest (learning/trunk.py)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

Named = tuple[str, nn.Module]


def as_chain(network: nn.Module, candidates: Iterable[Sequence[Named]], probe: Tensor) -> list[Named]:
    """Give the first of some sequences of a network's parts that does what the network does, to the bit.

    Where none does, the network stays whole. It must be in evaluation mode.
    """
    with torch.no_grad():
        wanted = network(probe)
        for parts in candidates:
            try:
                found = nn.Sequential(OrderedDict(parts))(probe)
            except Exception:  # whatever a part does with inputs that are not meant for it
                continue
            own = {id(p) for _, part in parts for p in part.parameters()}
            same = isinstance(found, Tensor) and found.shape == wanted.shape and torch.equal(found, wanted)
            if same and own == {id(p) for p in network.parameters()}:
                return list(parts)
    return [("network", network)]
