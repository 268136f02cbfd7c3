"""A module as a function of its weights."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call


class Stateless:
    """Calls a module with weights from outside, and leaves it as it was.

    To be called with weights a module must hold them for that moment. So every thread but the first has a copy of
    its own, which has layers of its own but shares their tensors.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._own = threading.local()
        self._own.module = module
        every = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
        self._tied = len({id(tensor) for _, tensor in every}) < len(every)  # one tensor under two names

    def __call__(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The module's outputs with these parameters and buffers, by their names in the module."""
        if not hasattr(self._own, "module"):
            with self._lock:
                tensors = [*self._module.parameters(), *self._module.buffers()]
                self._own.module = copy.deepcopy(self._module, {id(tensor): tensor for tensor in tensors})
        outputs: Tensor = functional_call(self._own.module, dict(weights), (x,), tie_weights=self._tied)
        return outputs
