"""Where the outputs of trunks are kept: in memory up to a limit, in files of a temporary folder beyond it.

One store per process, for all runs in it: what one run has computed serves the next, since keys are digests of the
trunk and of the data. The folder is removed when the process ends.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_SPARE = 1_000_000_000  # bytes that are left free on disk, for others


@dataclass(frozen=True)
class _OnDisk:
    """A tensor in a file, as the bytes that it has in memory."""

    path: Path
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def write(cls, path: Path, tensor: Tensor) -> _OnDisk:
        """Write a tensor that fills its memory."""
        flat = tensor.as_strided((tensor.numel(),), (1,))
        flat.view(torch.uint8).numpy().tofile(path)
        return cls(path, tensor.dtype, tensor.shape, tensor.stride())

    def read(self) -> Tensor:
        """Give the tensor with the file for its memory: what is used of it is read."""
        raw = torch.from_numpy(np.memmap(self.path, dtype=np.uint8, mode="c"))
        return raw.view(self.dtype).as_strided(self.shape, self.stride)


class Store:
    """Tensors by key."""

    def __init__(self, limit: float = 0.0) -> None:
        self.limit = limit  # bytes of memory: that of whoever asked last
        self.bytes = 0  # in memory
        self._in_memory: OrderedDict[str, Tensor] = OrderedDict()  # the last used last
        self._on_disk: dict[str, _OnDisk] = {}
        self._files = 0
        self._lock = threading.Lock()

    @cached_property
    def _folder(self) -> Path:
        folder = tempfile.mkdtemp(prefix="pflego-trunk-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # at the latest when Python ends
        return Path(folder)

    @property
    def files(self) -> int:
        """How many tensors are on disk."""
        return len(self._on_disk)

    def get(self, key: str) -> Tensor | None:
        """Give what was put there; None if nothing was, or its file is gone."""
        with self._lock:
            if key in self._in_memory:
                self._in_memory.move_to_end(key)
                return self._in_memory[key]
            filed = self._on_disk.get(key)
            try:
                return None if filed is None else filed.read()
            except OSError:
                del self._on_disk[key]
                return None

    def put(self, key: str, tensor: Tensor) -> Tensor:
        """Keep a tensor; those that were not used for the longest time go to disk where there are too many."""
        tensor = tensor if _fills_memory(tensor) else tensor.contiguous()
        with self._lock:
            if key not in self._in_memory:
                self._in_memory[key] = tensor
                self.bytes += tensor.nbytes
            while self.bytes > self.limit:
                oldest, leaving = self._in_memory.popitem(last=False)
                self.bytes -= leaving.nbytes
                self._file(oldest, leaving)
            filed = None if key in self._in_memory else self._on_disk.get(key)
        return tensor if filed is None else filed.read()

    def _file(self, key: str, tensor: Tensor) -> None:
        if key in self._on_disk or tensor.numel() == 0:
            return
        self._files += 1
        path = self._folder / f"{self._files}.bin"
        if shutil.disk_usage(self._folder).free < tensor.nbytes + _SPARE:
            return  # it will be computed again
        try:
            self._on_disk[key] = _OnDisk.write(path, tensor)
        except OSError:
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._in_memory.clear()
            self.bytes = 0
            for filed in self._on_disk.values():
                filed.path.unlink(missing_ok=True)
            self._on_disk.clear()


STORE = Store()


def _fills_memory(tensor: Tensor) -> bool:
    """Tell whether its numbers lie side by side, in whatever order of dimensions, and nothing else with them."""
    owns = tensor.untyped_storage().nbytes() == tensor.nbytes
    return owns and (
        tensor.is_contiguous()
        or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
    )
