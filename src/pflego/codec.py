"""Named tensors and a few facts as bytes: what is written and what travels are encoded alike.

safetensors, with facts as JSON beside the tensors and a digest over both. Nothing that is read is believed: sizes,
names, shapes and types are compared with what is expected before a byte is taken for a number, and nothing in it is
ever run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import isfinite
from typing import Any, TypeAlias, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from pflego.errors import UserError
from pflego.weights import Weights, aligned, is_finite, nbytes

T = TypeVar("T")
Facts: TypeAlias = Mapping[str, object]

_FORMAT = "pflego 2"
_LARGEST = 2**53  # whole numbers up to here are the same for everybody
_FACTS = 1_000_000  # characters of facts, at most
_HEADER = 256  # bytes that a name, a type and a shape take, at most


class MessageError(UserError):
    """Bytes that are damaged, foreign, or not what was agreed on. They are not used."""


@dataclass(frozen=True)
class Decoded:
    """What bytes held."""

    tensors: Weights
    facts: Reader
    digest: str  # of both

    def hold_to(self, like: Weights) -> Decoded:
        """Refuse tensors that are not called like others, have not their shape and type, or are not finite."""
        if self.tensors.keys() != like.keys():
            raise MessageError(f"its weights are called {some(self.tensors)}, not {some(like)}")
        for name, wanted in like.items():
            tensor = self.tensors[name]
            if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
                raise MessageError(
                    f"its {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                    f"not {wanted.dtype} of shape {tuple(wanted.shape)}"
                )
            if not is_finite({name: tensor}):
                raise MessageError(f"its {name} holds an infinity or a NaN")
        # safetensors gives them in any order, and sums over tensors must come out the same every time
        return replace(self, tensors={name: self.tensors[name] for name in like})


def encode(tensors: Weights, facts: Facts) -> bytes:
    """Give tensors and facts as bytes."""
    kept = {  # copies, since safetensors refuses tensors that share memory
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    text = json.dumps(facts, sort_keys=True)
    return save(kept, metadata={"format": _FORMAT, "facts": text, "digest": digest(kept, text)})


def decode(data: bytes, *, like: Weights | None = None) -> Decoded:
    """Read what `encode` wrote.

    like: what the tensors must be called, and what shape and type they have; they must be finite, too.
    """
    if like is not None and len(data) > (most := nbytes(like) + _HEADER * (len(like) + 1) + _FACTS):
        raise MessageError(f"it has {len(data)} bytes, and at most {most} were expected")
    try:
        metadata = _metadata(data)
        tensors = load(data)
    except (SafetensorError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise MessageError(f"it cannot be read: {error}") from error
    decoded = checked(tensors, metadata)
    return decoded if like is None else decoded.hold_to(like)


def digest_of(data: bytes) -> str:
    """Return the digest that encoded bytes carry."""
    return str(_metadata(data)["digest"])


def _metadata(data: bytes) -> Mapping[str, Any]:
    header: Mapping[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__") or {}


def checked(tensors: Weights, metadata: Mapping[str, Any]) -> Decoded:
    """Hold tensors and what stood beside them to their digest."""
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
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"what it says beside its tensors cannot be read: {error}") from error
    return Decoded({name: aligned(tensor) for name, tensor in tensors.items()}, Reader(facts), found)


def digest(tensors: Weights, facts: str = "") -> str:
    """Digest tensors, in whatever order they are, and facts."""
    total = blake2b(f"{facts}\0".encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
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

    def text(self, name: str) -> str:
        """Give a text."""
        return self.one(name, (str,))

    def client(self, name: str) -> str | int:
        """Give a client's id."""
        value = self.facts.get(name)
        return value if isinstance(value, str) else self.one(name, (int,))

    def whole(self, name: str, *, least: int) -> int:
        """Give a whole number."""
        value = self.one(name, (int,))
        if not least <= value <= _LARGEST:
            raise MessageError(f"its {name} is {str(value)[:40]}")
        return value

    def finite(self, name: str, *, least: float | None = None, most: float | None = None) -> float:
        """Give a number."""
        value = self.one(name, (float, int))
        if not -_LARGEST <= value <= _LARGEST and isinstance(value, int):
            raise MessageError(f"its {name} is {str(value)[:40]}")
        if (
            not isfinite(value)
            or (least is not None and value < least)
            or (most is not None and value > most)
        ):
            raise MessageError(f"its {name} is {value}")
        return float(value)

    def choice(self, name: str, known: Iterable[str]) -> str:
        """Give one of some words."""
        value = self.text(name)
        if value not in known:
            raise MessageError(f"its {name} is {value[:40]!r}")
        return value

    def numbers(self, name: str, *, least: int) -> tuple[int, ...]:
        """Give whole numbers."""
        values = self.one(name, (list,))
        if not all(type(value) is int and least <= value <= _LARGEST for value in values):
            raise MessageError(f"its {name} are not whole numbers from {least}")
        return tuple(values)


def some(names: Iterable[object]) -> str:
    """Give the first few of many names, in words."""
    words = [str(name)[:40] for name in names]
    return ", ".join(words[:4]) + (", ..." if len(words) > 4 else "") if words else "nothing"
