"""Named arrays and a few facts as bytes: safetensors, with facts as JSON beside the tensors and a digest over both.

Nothing that is read is believed: sizes, names, shapes and types are compared with what is expected before a byte is
taken for a number, and nothing in it is ever run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import isfinite, prod
from typing import Any, TypeAlias, TypeVar

import numpy as np

from pflego_light.arrays import Array, Weights
from pflego_light.errors import MessageError

T = TypeVar("T")
Facts: TypeAlias = Mapping[str, object]

_FORMAT = "pflego 2"
_LARGEST = 2**53  # whole numbers up to here are the same for everybody
_FACTS = 1_000_000  # characters of facts, at most
_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_NAMES = {name: kind for kind, name in _TYPES.items()}


@dataclass(frozen=True)
class Decoded:
    """What bytes held."""

    tensors: Weights
    facts: Reader
    digest: str  # of both

    def hold_to(self, shapes: Mapping[str, tuple[int, ...]]) -> Decoded:
        """Refuse arrays that are not called so, have another shape, are not float32, or are not finite."""
        if self.tensors.keys() != shapes.keys():
            raise MessageError(f"its weights are called {some(self.tensors)}, not {some(shapes)}")
        for name, shape in shapes.items():
            array = self.tensors[name]
            if array.shape != shape or array.dtype != np.float32:
                raise MessageError(
                    f"its {name} is {array.dtype} of shape {array.shape}, not float32 of shape {shape}"
                )
            if not np.isfinite(array).all():
                raise MessageError(f"its {name} holds an infinity or a NaN")
        return replace(self, tensors={name: self.tensors[name] for name in shapes})


def encode(tensors: Mapping[str, Array], facts: Facts) -> bytes:
    """Give arrays and facts as bytes."""
    text = json.dumps(facts, sort_keys=True)
    header: dict[str, object] = {
        "__metadata__": {"format": _FORMAT, "facts": text, "digest": digest(tensors, text)}
    }
    parts, end = [], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)):  # aligned to their size
        array = np.ascontiguousarray(tensors[name])
        parts.append(array.tobytes())
        begin, end = end, end + array.nbytes
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _NAMES[str(array.dtype)], "shape": shape, "data_offsets": [begin, end]}
    said = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    said += b" " * (-len(said) % 8)
    return b"".join([len(said).to_bytes(8, "little"), said, *parts])


def decode(data: bytes) -> Decoded:
    """Read what `encode` wrote, here or in pflego."""
    try:
        size = int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(data[8 : 8 + size])
        metadata = header.pop("__metadata__", None) or {}
        body = memoryview(data)[8 + size :]
        tensors = {name: _tensor(body, **entry) for name, entry in header.items()}
        if sum(array.nbytes for array in tensors.values()) != len(body):
            raise ValueError("its tensors do not fill it")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise MessageError(f"it cannot be read: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise MessageError("it was not written by this version of pflego")
    text = str(metadata.get("facts", ""))
    found = digest(tensors, text)
    if metadata.get("digest") != found:
        raise MessageError("its content does not match its digest")
    if len(text) > _FACTS:
        raise MessageError(
            f"it says {len(text)} characters beside its tensors, and at most {_FACTS} are read"
        )
    try:
        return Decoded(tensors, Reader(json.loads(text)), found)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"what it says beside its tensors cannot be read: {error}") from error


def _tensor(body: memoryview, dtype: str, shape: list[int], data_offsets: list[int]) -> Any:
    begin, end = data_offsets
    kind = np.dtype(_TYPES[dtype])
    if (
        not 0 <= begin <= end <= len(body)
        or min([0, *shape]) < 0
        or end - begin != prod(shape) * kind.itemsize
    ):
        raise ValueError("a tensor is not where it should be")
    return np.frombuffer(body[begin:end], dtype=kind).reshape(shape)


def digest(tensors: Mapping[str, Array], facts: str = "") -> str:
    """Digest arrays, in whatever order they are, and facts."""
    total = blake2b(f"{facts}\0".encode(), digest_size=16)
    for name in sorted(tensors):
        array = tensors[name]
        total.update(f"{name} torch.{array.dtype} {array.shape}\0".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


class Reader:
    """Takes values from facts that somebody else has written."""

    def __init__(self, facts: object) -> None:
        if not isinstance(facts, Mapping):
            raise MessageError("a record is missing in it")
        self.facts: Facts = facts

    def one(self, name: str, kinds: tuple[type[T], ...]) -> T:
        """Give a value of one of some types."""
        value = self.facts.get(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise MessageError(f"its {name} is {str(value)[:40]!r}")
        return value

    def inner(self, name: str) -> Reader:
        """Give facts within facts."""
        return Reader(self.facts.get(name))

    def whole(self, name: str, *, least: int) -> int:
        """Give a whole number."""
        value = self.one(name, (int,))
        if not least <= value <= _LARGEST:
            raise MessageError(f"its {name} is {str(value)[:40]}")
        return value

    def finite(self, name: str, *, least: float, most: float) -> float:
        """Give a number."""
        value = self.one(name, (float, int))
        if not (isinstance(value, int) or isfinite(value)) or not least <= value <= most:
            raise MessageError(f"its {name} is {str(value)[:40]}")
        return float(value)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Give whole numbers from 0 on."""
        values = self.one(name, (list,))
        if not all(type(value) is int and 0 <= value <= _LARGEST for value in values):
            raise MessageError(f"its {name} are not whole numbers from 0")
        return tuple(values)


def some(names: Iterable[object]) -> str:
    """Give the first few of many names, in words."""
    words = [str(name)[:40] for name in names]
    return ", ".join(words[:4]) + (", ..." if len(words) > 4 else "") if words else "nothing"
