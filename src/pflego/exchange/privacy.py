"""Client-level differential privacy of everything that is shared: clip each client, add noise to the sum.

    c_i'  = c_i min(1, C / |c_i|)                                   each client of the cohort, before anything is summed
    S     = sum_i w_i c_i' + w N(0, z^2 C^2)                        in every round, also where nobody answers

w_i = 1 / (I pi_i) is known beforehand and never the number of replies, w the largest of them. So one client more or
less moves S by at most w C, and S is the Gaussian mechanism with noise multiplier z; what the server makes of S,
and what clients do at home with the weights that come of it, costs nothing more. accountant.py says how much T rounds
cost.

A reply that is missing, or not finite, counts as zeros: that too is a function of one client's data. A rule that looks
at several replies to leave one out would not be.

With a quantile the clip follows the clients (Andrew et al., 2021): of each, the server also sums whether it was below
the clip, b_i - 1/2, with noise of its own, s, and

    C  <- C exp(-rate (share - quantile)),      share = 1/2 + sum_i w_i (b_i - 1/2) + w N(0, s^2)

Both sums together are one release of noise multiplier z where the first has z' = (z^-2 - (2 s)^-2)^(-1/2) > z.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import shake_256
from math import exp, isfinite, prod, sqrt
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from pflego.declaration import Limits, NotNegative, Positive, check_fields, declared
from pflego.errors import SettingError, UserError
from pflego.exchange.round import Round
from pflego.weights import Weights, norm

_BELOW = "below the clip"  # the entry of a sum: b_i - 1/2
_CLIP = "clip"  # the server's: C
_MARGIN = (
    1e-6  # a clipped contribution is shorter by this share, so that rounding cannot lengthen it beyond C
)
_OPTIONAL = "none"


@dataclass(frozen=True)
class ClientPrivacy:
    """Differential privacy for every client as a whole: who takes part, and with which data.

    Parameters
    ----------
    clip
        C, the largest Euclidean norm of a client's contribution, all tensors together; where the clip follows a
        quantile, the first.
    noise
        z, the noise multiplier: the sum of contributions gets normal noise of this many times C. 0: none, and no
        privacy.
    delta
        The probability with which the promise may fail: far below one over the number of clients.
    max_epsilon
        Training stops before the privacy that was spent exceeds it.
    quantile
        Let the clip follow this quantile of the clients' norms; if not given, it stays.
    clip_lr
        The rate at which it follows.
    """

    clip: Positive = 1.0
    noise: NotNegative = 1.0
    delta: Annotated[float, Limits(above=0, below=1)] = 1e-5
    max_epsilon: Positive | None = None
    quantile: Annotated[float | None, Limits(above=0, below=1)] = None
    clip_lr: Positive = 0.2

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return ",".join(f"{name}={value}" for name, value in given.items() if value != _default(name))

    def split(self, expected: float) -> tuple[float, float]:
        """Give the noise multiplier of the sum of contributions, and the deviation of the noise of the count.

        expected: r, the mean number of participants; the count is off by a twentieth of it, or more where that would
        take too much from the sum.
        """
        if self.quantile is None or not self.noise:
            return self.noise, 0.0
        count = max(expected / 20, self.noise)
        return (self.noise**-2 - (2 * count) ** -2) ** -0.5, count


@dataclass(frozen=True)
class Guard:
    """Privacy in one exchange of one round: bounds what arrives, and makes noise for what is released.

    Parameters
    ----------
    privacy
        The settings.
    state
        What the server keeps for it: the clip, where that moves.
    weight
        w, the largest weight of anybody's contribution.
    key
        What noise is a function of, beside the round: nobody who sees weights may know it.
    now
        The round.
    """

    privacy: ClientPrivacy
    state: Weights
    weight: float
    key: bytes
    now: Round

    @property
    def clip(self) -> float:
        """C of this round."""
        return float(self.state[_CLIP]) if _CLIP in self.state else self.privacy.clip

    def bounded(self, contribution: Weights) -> Weights:
        """Shorten a contribution to C, and say whether it was below; one that is not finite counts as zeros."""
        size, limit = norm(contribution), self.clip
        if not isfinite(size):
            sent = {name: torch.zeros_like(tensor) for name, tensor in contribution.items()}
        elif size <= limit:
            sent = dict(contribution)
        else:
            factor = limit / size * (1 - _MARGIN)
            sent = {name: tensor * factor for name, tensor in contribution.items()}
        if self.privacy.quantile is not None:
            sent[_BELOW] = torch.tensor(0.5 if size <= limit else -0.5, dtype=torch.float64)
        return sent

    def release(self, total: Weights, form: Weights) -> tuple[Weights, Weights]:
        """Add noise to a weighted sum; give it, and what the server keeps from now on.

        form: tensors like those of a contribution, for a round in which none has arrived.
        """
        multiplier, count_noise = self.privacy.split(1 / self.weight)
        released = {}
        deviation = self.weight * multiplier * self.clip
        for name, like in form.items():
            if name != _BELOW:
                exact = total.get(name, torch.zeros_like(like))
                released[name] = self._noised(exact, deviation, name) if deviation else exact
        if self.privacy.quantile is None:
            return released, {}
        exact = total.get(_BELOW, torch.zeros((), dtype=torch.float64))
        share = 0.5 + float(self._noised(exact, self.weight * count_noise, _BELOW))
        moved = self.clip * exp(-self.privacy.clip_lr * (share - self.privacy.quantile))
        return released, {_CLIP: torch.tensor(moved, dtype=torch.float64)}

    def _noised(self, exact: Tensor, deviation: float, name: str) -> Tensor:
        words = ["privacy noise", str(self.now.number), str(self.now.exchange), name]
        noise = gaussian(self.key, words, tuple(exact.shape))
        return (exact.double().cpu() + deviation * noise).to(exact)


def gaussian(key: bytes, words: Sequence[str], shape: tuple[int, ...]) -> Tensor:
    """Draw standard normal numbers, in float64, as a function of a key and words: by SHAKE-256 and Box and Muller.

    Who does not know the key cannot tell them from true ones, however many others of them are known.
    """
    spelled = [key, *(word.encode() for word in words)]
    seed = b"".join(len(part).to_bytes(8, "big") + part for part in spelled)
    count = prod(shape)
    pairs = (count + 1) // 2
    stream = np.frombuffer(shake_256(seed).digest(16 * pairs), dtype="<u8")
    uniform = ((stream >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # within (0, 1)
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(normal.reshape(shape))


def key_of(seed: int) -> bytes:
    """Give the key of a simulation, whose noise is a function of its seed like all else."""
    return f"seed {seed}".encode()


def per_round(noise: float, exchanges: int) -> float:
    """Give the noise multiplier of a round in which the same cohort is summed up more than once.

    Sums of one cohort are one Gaussian mechanism: z / sqrt(exchanges).
    """
    return noise / sqrt(exchanges)


def privacy_of(given: object) -> ClientPrivacy | None:
    """Make privacy of what was given: itself, or a text.

    >>> privacy_of("clip=0.5,noise=2,max_epsilon=8")
    ClientPrivacy(clip=0.5, noise=2.0, delta=1e-05, max_epsilon=8.0, quantile=None, clip_lr=0.2)
    >>> print(privacy_of("clip=0.5, noise=2"))
    clip=0.5,noise=2.0,delta=1e-05
    """
    if given is None or isinstance(given, ClientPrivacy):
        return given
    if isinstance(given, str):
        return _read(given.strip())
    raise SettingError(f"privacy must be ClientPrivacy(clip=..., noise=...), not {given!r}")


def _read(text: str) -> ClientPrivacy | None:
    if text.lower() == _OPTIONAL:
        return None
    known = declared(ClientPrivacy)
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            if name not in known or name in values:
                raise ValueError(name)
            values[name] = float(value)
        except ValueError:
            raise SettingError(
                f"cannot read privacy {text!r}: give clip=1,noise=1,delta=1e-5, and if wanted max_epsilon=8 and "
                "quantile=0.5"
            ) from None
    try:
        return ClientPrivacy(**values)
    except UserError as error:
        raise SettingError(f"privacy {text!r}: {error}") from error


def _default(name: str) -> object:
    # what every promise rests on is always spelled out
    return declared(ClientPrivacy)[name].default if name not in ("clip", "noise", "delta") else None
