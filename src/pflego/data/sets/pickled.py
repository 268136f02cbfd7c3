"""Pickles of arrays, read by what builds arrays and nothing else: a pickle could call anything."""

from __future__ import annotations

import pickle
from typing import IO

import numpy as np


def load_arrays(file: IO[bytes]) -> object:
    """Read a pickle of arrays, numbers and texts, in lists and dictionaries; refuse any other."""
    return _Unpickler(file, encoding="latin1").load()


def _latin1(text: str, _: str) -> bytes:
    """Give the bytes of a pickle of protocol 2, which holds them as a text."""
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        known = {
            ("multiarray", "_reconstruct"): np.ndarray(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _latin1,
        }
        if (kind := known.get((module.rpartition(".")[2], name))) is None:
            raise ValueError(f"it wants to call {module}.{name}, which no pickle of arrays does")
        return kind
