"""Contributions made small for the wire: tensors of fewer bytes, and the same on every engine.

    Quantise(bits)       each number to one of 2^bits - 1 levels of its tensor, up or down at random      unbiased
    RandomPart(share)    a share of the numbers, drawn at random, times n / k                             unbiased
    Top(share)           the largest numbers, and where they stand                                        with feedback
    Sign()               the signs, and the mean length of a number                                       with feedback

Unbiased: on average over the draws, what arrives is what the client has worked for, so a step that was unbiased stays
so, and varies more. With feedback (Seide et al., 2014; Karimireddy et al., 2019): what was left out is kept in the
client's state and added to what it sends next, so that nothing is lost for good.

A client packs its contribution, tensor by tensor, after all transforms, and the server unpacks it before it combines
it. Sizes depend on shapes alone, so the server knows them beforehand. A tensor that would not become smaller is sent as
it is, and so are statistics that are neither gradients nor differences. The draws of RandomPart are known to both sides
from the seed: where the numbers stand is not sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflego.codec import MessageError
from pflego.declaration import Limits, check_fields
from pflego.errors import SettingError, UserError
from pflego.exchange.round import Round
from pflego.federation.client import ClientId
from pflego.randomness import torch_generator
from pflego.weights import Weights

_MEMORY = "compression/"  # before the names of what a client's state keeps for its next contributions
_PART = ":"  # between the name of a tensor and that of a part of its packed form
_POSITION = 4  # bytes of a number's place in its tensor

Share: TypeAlias = Annotated[float, Limits(above=0, below=1)]


@dataclass(frozen=True)
class Draw:
    """Where randomness comes from: one tensor of one client's contribution."""

    now: Round
    client: ClientId
    name: str

    def generator(self, *, common: bool = False) -> torch.Generator:
        """Give the generator of this draw; common: the same for all clients of the exchange."""
        purpose = f"compression {self.now.exchange} {self.name}"
        whose = "" if common else self.client
        return torch_generator(self.now.seed, purpose, round_number=self.now.number, client=whose)


@dataclass(frozen=True)
class Compression(ABC):
    """A way to make a tensor small."""

    feedback: ClassVar[bool]  # whether what is left out is kept and sent later

    @property
    def linear(self) -> bool:
        """Whether packed forms may be added up: their sum unpacks to the sum of what they stand for."""
        return False

    @property
    def sparse(self) -> bool:
        """Whether clients of a round send different numbers each, and nothing of the others."""
        return False

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def size(self, numbers: int, width: int) -> int:
        """Count the bytes of a packed tensor of so many numbers, each of `width` bytes."""

    @abstractmethod
    def pack(self, tensor: Tensor, draw: Draw) -> Weights:
        """Give the parts of a tensor's packed form."""

    @abstractmethod
    def unpack(self, parts: Weights, like: Tensor, draw: Draw) -> Tensor:
        """Give the tensor that parts stand for, of a shape and type; refuse parts that stand for none."""

    def shrinks(self, tensor: Tensor) -> bool:
        """Tell whether a tensor becomes smaller."""
        wide = tensor.element_size()
        return tensor.is_floating_point() and self.size(tensor.numel(), wide) < tensor.numel() * wide


@dataclass(frozen=True)
class Quantise(Compression):
    """Round every number to a level of its tensor, up or down at random (Alistarh et al., 2017).

    With s the largest absolute number and L = 2^(bits - 1) - 1, x becomes s q / L, q one of the two whole numbers next
    to L x / s, each the likelier the nearer it is. The mean is x, and the variance (s / L)^2 p (1 - p) <= (s / 2L)^2,
    where p is the distance to the lower level.

    Parameters
    ----------
    bits
        Of a number on the wire.
    """

    feedback = False
    bits: Annotated[int, Limits(least=2, most=16)] = 8

    def __str__(self) -> str:
        return f"quantise:{self.bits}"

    @property
    def levels(self) -> int:
        """L: the levels on either side of zero."""
        return int(2 ** (self.bits - 1)) - 1

    def size(self, numbers: int, width: int) -> int:
        """Count the codes, and the scale."""
        return ceil(numbers * self.bits / 8) + width

    def pack(self, tensor: Tensor, draw: Draw) -> Weights:
        """Give codes and scale."""
        flat = tensor.detach().cpu().flatten()
        scale = flat.abs().max()
        exact = flat.double() / (scale.double() if scale > 0 else 1.0) * self.levels
        lower = exact.floor()
        up = torch.rand(len(flat), generator=draw.generator(), dtype=torch.float64) < exact - lower
        codes = (lower + up.double() + self.levels).to(torch.int64)  # 0 to 2 L
        return {"codes": _to_bits(codes.numpy(), self.bits), "scale": scale.view(1)}

    def unpack(self, parts: Weights, like: Tensor, draw: Draw) -> Tensor:
        """Give s q / L."""
        codes = torch.from_numpy(_from_bits(parts["codes"], self.bits, like.numel()))
        if len(codes) and int(codes.max()) > 2 * self.levels:
            raise MessageError(f"a number in it has no level of {self.bits} bits")
        flat = (codes - self.levels).double() / self.levels * parts["scale"].double()
        return flat.view(like.shape).to(like)


@dataclass(frozen=True)
class RandomPart(Compression):
    """Send some numbers, drawn at random without replacement, times n / k (Konecny et al., 2016).

    The mean is x, and the variance (n / k - 1) x^2, k = share n of n numbers.

    Parameters
    ----------
    share
        Of the numbers of a tensor, rounded; at least one.
    common
        Whether all clients of a round send the same numbers: packed forms can then be added up.
    """

    feedback = False
    share: Share = 0.1
    common: bool = False

    def __str__(self) -> str:
        return f"random:{self.share:g}" + ("/common" if self.common else "")

    @property
    def linear(self) -> bool:
        """Add up where all send the same numbers."""
        return self.common

    @property
    def sparse(self) -> bool:
        """Each client sends its own, unless they are common."""
        return not self.common

    def size(self, numbers: int, width: int) -> int:
        """Count the numbers that are sent."""
        return _count(self.share, numbers) * width

    def pack(self, tensor: Tensor, draw: Draw) -> Weights:
        """Give the numbers that were drawn."""
        flat = tensor.detach().cpu().flatten()
        chosen = self._chosen(len(flat), draw)
        return {"numbers": flat[chosen] * (len(flat) / len(chosen))}

    def unpack(self, parts: Weights, like: Tensor, draw: Draw) -> Tensor:
        """Put them where they were; the others are zero."""
        flat = torch.zeros(like.numel(), dtype=like.dtype)
        flat[self._chosen(len(flat), draw)] = parts["numbers"].to(like.dtype)
        return flat.view(like.shape).to(like)

    def _chosen(self, numbers: int, draw: Draw) -> Tensor:
        drawn = torch.randperm(numbers, generator=draw.generator(common=self.common))
        return drawn[: _count(self.share, numbers)]


@dataclass(frozen=True)
class Top(Compression):
    """Send the largest numbers, by absolute value, as they are; what is left is kept for the next time.

    Parameters
    ----------
    share
        Of the numbers of a tensor, rounded; at least one.
    """

    feedback = True
    share: Share = 0.05

    def __str__(self) -> str:
        return f"top:{self.share:g}"

    @property
    def sparse(self) -> bool:
        """Each client sends its own."""
        return True

    def size(self, numbers: int, width: int) -> int:
        """Count the numbers that are sent, and their places: a bit for every number, or four bytes for each sent."""
        sent = _count(self.share, numbers)
        return sent * width + min(ceil(numbers / 8), sent * _POSITION)

    def pack(self, tensor: Tensor, draw: Draw) -> Weights:
        """Give numbers and places, in the order of the tensor."""
        flat = tensor.detach().cpu().flatten()
        order = flat.abs().argsort(descending=True, stable=True)  # of equal ones the first, everywhere
        chosen = order[: _count(self.share, len(flat))].sort().values
        if not self._as_bits(len(flat)):
            return {"numbers": flat[chosen], "places": chosen.to(torch.int32)}
        there = np.zeros(len(flat), dtype=np.uint8)
        there[chosen.numpy()] = 1
        return {"numbers": flat[chosen], "places": torch.from_numpy(np.packbits(there))}

    def unpack(self, parts: Weights, like: Tensor, draw: Draw) -> Tensor:
        """Put the numbers where they were; the others are zero."""
        flat, sent = torch.zeros(like.numel(), dtype=like.dtype), _count(self.share, like.numel())
        if self._as_bits(len(flat)):
            there = np.unpackbits(parts["places"].numpy())
            chosen = torch.from_numpy(np.flatnonzero(there))
        else:
            chosen = parts["places"].long()
        ordered = len(chosen) == sent and bool((chosen[1:] > chosen[:-1]).all())
        if not ordered or not 0 <= int(chosen[0]) <= int(chosen[-1]) < len(flat):
            raise MessageError(f"its numbers stand in no {sent} places of {len(flat)}")
        flat[chosen] = parts["numbers"].to(like.dtype)
        return flat.view(like.shape).to(like)

    def _as_bits(self, numbers: int) -> bool:
        return ceil(numbers / 8) < _count(self.share, numbers) * _POSITION


@dataclass(frozen=True)
class Sign(Compression):
    """Send one bit for every number, and for a tensor the mean of their absolute values; the rest is kept."""

    feedback = True

    def __str__(self) -> str:
        return "sign"

    def size(self, numbers: int, width: int) -> int:
        """Count the bits, and the scale."""
        return ceil(numbers / 8) + width

    def pack(self, tensor: Tensor, draw: Draw) -> Weights:
        """Give signs and scale."""
        flat = tensor.detach().cpu().flatten()
        mean = flat.double().abs().mean().to(flat.dtype)
        return {"signs": torch.from_numpy(np.packbits((flat >= 0).numpy())), "scale": mean.view(1)}

    def unpack(self, parts: Weights, like: Tensor, draw: Draw) -> Tensor:
        """Give the mean length, with its sign."""
        bits = np.unpackbits(parts["signs"].numpy(), count=like.numel())
        flat = (torch.from_numpy(bits).to(like.dtype) * 2 - 1) * parts["scale"].to(like.dtype)
        return flat.view(like.shape).to(like)


def pack(
    compression: Compression,
    contribution: Weights,
    memory: Weights,
    now: Round,
    client: ClientId,
    *,
    exact: Callable[[str], bool] = lambda name: False,
) -> tuple[Weights, Weights, Weights]:
    """Make a contribution small: give what is sent, what the server will take it for, and the client's new memory.

    Parameters
    ----------
    memory
        What the client's state has kept, as `memory_of` gives it.
    exact
        Says of which names tensors are sent as they are: `Algorithm.exact`.
    """
    sent: Weights = {}
    kept = dict(memory)
    whole: Weights = {}
    for name, tensor in contribution.items():
        if exact(name) or not compression.shrinks(tensor):
            sent[name] = tensor
        else:
            whole[name] = tensor
            place = f"{_MEMORY}{now.exchange}/{name}"
            if compression.feedback and place in memory:
                whole[name] = tensor + memory[place].to(tensor)
            parts = compression.pack(whole[name], Draw(now, client, name))
            sent |= {f"{name}{_PART}{part}": one for part, one in parts.items()}
    taken = unpack(compression, sent, contribution, now, client, exact=exact)
    if compression.feedback:
        kept |= {f"{_MEMORY}{now.exchange}/{name}": (one - taken[name]).cpu() for name, one in whole.items()}
    return sent, taken, kept


def unpack(
    compression: Compression,
    sent: Weights,
    like: Weights,
    now: Round,
    client: ClientId,
    *,
    exact: Callable[[str], bool] = lambda name: False,
) -> Weights:
    """Give the contribution that was sent, like another one in names, shapes and types."""
    found: Weights = {}
    for name, tensor in like.items():
        if exact(name) or not compression.shrinks(tensor):
            found[name] = sent[name]
        else:
            own = f"{name}{_PART}"
            parts = {full.removeprefix(own): one for full, one in sent.items() if full.startswith(own)}
            found[name] = compression.unpack(parts, tensor, Draw(now, client, name))
    return found


def memory_of(state: Weights) -> Weights:
    """Give what a client's state keeps of what it has not sent yet."""
    return {name: tensor for name, tensor in state.items() if name.startswith(_MEMORY)}


def without_memory(state: Weights) -> Weights:
    """Give what a client's state keeps for its method."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(_MEMORY)}


def compression_of(given: object) -> Compression | None:
    """Make a compression of what was given: one itself, a text, or None.

    >>> compression_of("quantise:4"), str(compression_of("random:0.1/common")), compression_of(None)
    (Quantise(bits=4), 'random:0.1/common', None)
    """
    if given is None or isinstance(given, Compression):
        return given
    if not isinstance(given, str):
        raise SettingError(f"compression must be Quantise(8) or another one, or a text, not {given!r}")
    kind, _, value = given.strip().lower().partition(":")
    try:
        match kind, value:
            case "quantise", _:
                return Quantise(int(value)) if value else Quantise()
            case "random", _:
                share, slash, common = value.partition("/")
                if not slash or common == "common":
                    return RandomPart(float(share), bool(slash)) if share else RandomPart(common=bool(slash))
            case "top", _:
                return Top(float(value)) if value else Top()
            case "sign", "":
                return Sign()
    except UserError as error:
        raise SettingError(f"compression {given!r}: {error}") from error
    except ValueError:
        pass
    raise SettingError(
        f"cannot read compression {given!r}: give quantise:8, random:0.1 (or random:0.1/common: the same numbers of "
        "all), top:0.05 or sign"
    )


def _count(share: float, numbers: int) -> int:
    return max(1, round(share * numbers))


def _to_bits(codes: npt.NDArray[np.int64], bits: int) -> Tensor:
    """Write whole numbers as so many bits each, the highest first.

    >>> _to_bits(np.array([5, 1, 6]), 3).tolist()  # 101 001 110
    [167, 0]
    """
    places = np.arange(bits - 1, -1, -1)
    return torch.from_numpy(np.packbits(((codes[:, None] >> places) & 1).astype(np.uint8)))


def _from_bits(packed: Tensor, bits: int, numbers: int) -> npt.NDArray[np.int64]:
    table = np.unpackbits(packed.numpy(), count=numbers * bits).reshape(numbers, bits)
    return np.asarray(table.astype(np.int64) @ (1 << np.arange(bits - 1, -1, -1)))
