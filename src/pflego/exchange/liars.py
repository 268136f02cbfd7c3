"""Clients that lie, in simulations: who they are, what they know, and what they send instead of their work.

    SignFlip         -f c_i                 away from where its own data lead
    Scaled           f c_i                  its own way, for everybody
    Noise            a draw of N(0, s^2 1)  of f times the length of c_i
    FalseCounts      c_i, said to be of f times as many samples: for rules that weight by them
    FlippedLabels    honest work on data whose classes are turned round, the first for the last
    ShuffledLabels   honest work on data whose labels are dealt out anew: there is nothing to learn
    ALittle          mu - z sigma, number by number (Baruch et al., 2019): liars who know each other, and stay so near
                     the others that a rule cannot tell them apart

c_i is what the client would have sent. A liar knows its own data and work, the shared weights it was sent, and how many
clients a round has; liars who conspire know each other's work too. Nobody knows that of honest clients: mu and sigma
are the mean and spread of what the round's liars would have sent. What a client tells beside gradients and differences,
such as its loss or the constant that server_lr="auto" takes the largest of, is told honestly.

>>> liars_of("samples:10+sign@0.2").who(range(10), seed=0) == liars_of("sign@0.2").who(range(10), seed=0)
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
import torch

from pflego.declaration import InPython, Limits, NotNegative, Positive, check_fields
from pflego.errors import SettingError, UserError
from pflego.exchange.round import Round
from pflego.federation.roster import Client, ClientId, Federation, Masses
from pflego.randomness import numpy_generator, torch_generator
from pflego.weights import Weights, norm

Sent: TypeAlias = Mapping[ClientId, Weights]

_HELD = 256  # liars whose changed data are held in memory
_FAR = (
    8.0  # standard deviations that liars shift by where they are the majority: nobody needs to be convinced
)


@dataclass(frozen=True)
class Lie:
    """What a liar does; one that says nothing else does its work like everybody."""

    word: ClassVar[str]  # in settings
    conspires: ClassVar[bool] = False  # whether liars must know each other's work

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        """Give its text in settings: its word, and its strength where that is not the usual one."""
        changed = [v for f in fields(self) if (v := getattr(self, f.name)) != f.default]
        return ":".join([self.word, *(f"{value:g}" for value in changed)])

    def counts(self, samples: Masses) -> Masses:
        """Say how many samples liars claim to have."""
        return samples

    def data(self, client: Client, classes: Sequence[int] | None, seed: int) -> Client:
        """Give what a liar trains on."""
        return client

    def told(self, sent: Sent, now: Round, asked: int) -> Sent:
        """Give what a round's liars send, from what they would have sent; `asked` are all clients of the round."""
        return sent


@dataclass(frozen=True)
class SignFlip(Lie):
    """Send the opposite.

    Parameters
    ----------
    times
        How many times as long.
    """

    word = "sign"
    times: Positive = 1.0

    def told(self, sent: Sent, now: Round, asked: int) -> Sent:
        """-f c_i."""
        return _scaled(sent, -self.times)


@dataclass(frozen=True)
class Scaled(Lie):
    """Send a multiple.

    Parameters
    ----------
    times
        Of its own work.
    """

    word = "scale"
    times: Positive = 10.0

    def told(self, sent: Sent, now: Round, asked: int) -> Sent:
        """f c_i."""
        return _scaled(sent, self.times)


@dataclass(frozen=True)
class Noise(Lie):
    """Send noise.

    Parameters
    ----------
    times
        Its length, root mean square, as a multiple of the length of its own work.
    """

    word = "noise"
    times: Positive = 10.0

    def told(self, sent: Sent, now: Round, asked: int) -> Sent:
        """Draw every number from N(0, s^2), s = f |c_i| / sqrt(how many there are)."""
        return {client: self._drawn(own, now, client) for client, own in sent.items()}

    def _drawn(self, own: Weights, now: Round, client: ClientId) -> Weights:
        numbers = sum(tensor.numel() for tensor in own.values())
        spread = self.times * norm(own) / max(1, numbers) ** 0.5
        purpose = f"lie {now.exchange}"
        generator = torch_generator(now.seed, purpose, round_number=now.number, client=client)
        return {
            name: (torch.randn(t.shape, generator=generator, dtype=torch.float64) * spread).to(t)
            for name, t in own.items()
        }


@dataclass(frozen=True)
class FalseCounts(Lie):
    """Claim more samples than there are: where clients count by their samples, a liar counts for more.

    Parameters
    ----------
    times
        As many as there are.
    """

    word = "samples"
    times: Positive = 10.0

    def counts(self, samples: Masses) -> Masses:
        """f N_i, at least one; of weights, f times their sum."""
        if samples.dtype.kind == "f":
            return np.asarray(self.times * samples)
        return np.asarray(np.maximum(1, np.rint(self.times * samples)), dtype=np.int64)


@dataclass(frozen=True)
class FlippedLabels(Lie):
    """Train on labels turned round: of K classes, k becomes K - 1 - k; numbers are mirrored at their mean.

    A client with a head of its own learns the new names as well as the old ones, and sends the same.
    """

    word = "labels"

    def data(self, client: Client, classes: Sequence[int] | None, seed: int) -> Client:
        """Turn the training labels round; tests stay."""
        labels = client.y_train
        if classes is None:
            turned = 2 * labels.mean(dim=0, keepdim=True) - labels
        else:
            known = torch.tensor(classes)
            turned = known.flip(0)[torch.searchsorted(known, labels)]
        return _relabelled(client, turned)


@dataclass(frozen=True)
class ShuffledLabels(Lie):
    """Train on labels that were dealt out anew among a client's own samples."""

    word = "shuffle"

    def data(self, client: Client, classes: Sequence[int] | None, seed: int) -> Client:
        """Permute the training labels; tests stay."""
        drawn = numpy_generator(seed, "shuffled labels", client=client.id)
        order = torch.from_numpy(drawn.permutation(len(client.y_train)))
        return _relabelled(client, client.y_train[order])


@dataclass(frozen=True)
class ALittle(Lie):
    """Shift every number by z standard deviations, the same for all liars: a little is enough (Baruch et al., 2019).

    Of n clients of whom m lie, s = floor(n / 2 + 1) - m honest ones more make a majority. z is the largest for which so
    many are expected to lie beyond mu - z sigma: Phi(z) = (n - m - s) / (n - m), at least 0. One liar alone has no
    spread to hide in, and sends what it would have sent.

    Parameters
    ----------
    z
        How far; if not given, as far as n and m allow.
    """

    word = "little"
    conspires = True
    z: NotNegative | None = None

    def told(self, sent: Sent, now: Round, asked: int) -> Sent:
        """Mu - z sigma, of what liars would have sent."""
        if not sent:
            return {}
        shift = shift_allowed(asked, len(sent)) if self.z is None else self.z
        first = next(iter(sent.values()))
        same: Weights = {}
        for name, tensor in first.items():
            rows = torch.stack([own[name].double() for own in sent.values()])  # (liars, ...)
            same[name] = (rows.mean(dim=0) - shift * rows.std(dim=0, correction=0)).to(tensor)
        return dict.fromkeys(sent, same)


def shift_allowed(asked: int, liars: int) -> float:
    """Give z of "a little is enough", for so many liars among those who were asked.

    >>> round(shift_allowed(50, 24), 2), shift_allowed(50, 1), shift_allowed(4, 3)
    (1.43, 0.0, 8.0)
    """
    honest, needed = asked - liars, asked // 2 + 1 - liars
    if needed <= 0:
        return _FAR
    share = (honest - needed) / honest
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0


_LIES: dict[str, type[Lie]] = {
    kind.word: kind for kind in (SignFlip, Scaled, Noise, FalseCounts, FlippedLabels, ShuffledLabels, ALittle)
}


@dataclass(frozen=True)
class Liars:
    """Some of a simulation's clients, and what they do.

    Parameters
    ----------
    lie
        What they do, or several things one after the other.
    share
        How many clients lie, as a share of all: rounded, at least one. Who it is depends on the seed and not on the
        lie, and those of a smaller share are among those of a larger one.
    """

    lie: Annotated[Lie | Sequence[Lie], InPython]
    share: Annotated[float, Limits(above=0, below=1)] = 0.2

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.lies or any(not isinstance(one, Lie) for one in self.lies):
            raise SettingError(f"liars need a lie such as SignFlip(), or several, not {self.lie!r}")

    @property
    def lies(self) -> tuple[Lie, ...]:
        """All they do, in order."""
        return (self.lie,) if isinstance(self.lie, Lie) else tuple(self.lie)

    @property
    def conspire(self) -> bool:
        """Whether they must know each other's work."""
        return any(one.conspires for one in self.lies)

    def __str__(self) -> str:
        return "+".join(map(str, self.lies)) + f"@{self.share:g}"

    def who(self, ids: Sequence[ClientId], *, seed: int) -> frozenset[int]:
        """Draw the positions of those who lie."""
        return _drawn(len(ids), max(1, round(self.share * len(ids))), seed)

    def counts(self, ids: Sequence[ClientId], masses: Masses, *, seed: int) -> Masses:
        """Give the sample counts, or sums of weights, that the server is told."""
        liars, told = sorted(self.who(ids, seed=seed)), masses.copy()
        for lie in self.lies:
            told[liars] = lie.counts(told[liars])
        return told

    def data(self, federation: Federation, *, seed: int) -> Federation:
        """Give the same federation, with the data that liars train on."""
        if all(type(lie).data is Lie.data for lie in self.lies):
            return federation
        liars = self.who(federation.ids, seed=seed)

        @lru_cache(maxsize=_HELD)
        def changed(position: int) -> Client:
            client = federation[position]
            for lie in self.lies:
                client = lie.data(client, federation.classes, seed)
            return client

        def load(client: ClientId) -> Client:
            position = federation.position(client)
            return changed(position) if position in liars else federation[position]

        return Federation.lazy(
            federation.ids,
            load,
            sizes=federation.sizes,
            masses=federation.masses if federation.weighted else None,
            classes=federation.classes,
            most_classes=federation.most_classes,
            source=federation.source,
            schema=federation.schema,
        )

    def told(self, sent: Sent, now: Round, asked: int) -> Sent:
        """Give what a round's liars send, from what they would have sent."""
        for lie in self.lies:
            sent = lie.told(sent, now, asked)
        return sent


def _relabelled(client: Client, labels: torch.Tensor) -> Client:
    """Give a client with other training labels."""
    x, x_test, y_test = client.x_train, client.x_test, client.y_test
    return Client(client.id, x, labels, x_test, y_test, weights=client.weights)


def lie_of(text: str) -> list[Lie]:
    """Read what liars do: a word, its strength behind a colon, and more of them behind a plus.

    >>> lie_of("samples:5+sign")
    [FalseCounts(times=5.0), SignFlip(times=1.0)]
    """
    lies = []
    for part in text.split("+"):
        word, colon, strength = (piece.strip() for piece in part.partition(":"))
        kind = _LIES.get(word.lower())
        try:
            if kind is None or (colon and not fields(kind)):
                raise ValueError
            lies.append(kind(*([float(strength)] if colon else [])))
        except UserError as error:
            raise SettingError(f"lie {text!r}: {error}") from error
        except ValueError:
            raise SettingError(
                f"cannot read the lie {text!r}: give one of {', '.join(_LIES)}, with its strength like scale:10, or "
                "several like samples:10+sign"
            ) from None
    return lies


def liars_of(given: object) -> Liars | None:
    """Make liars of what was given: themselves, a text, or None.

    >>> str(liars_of("little:1.5@0.3"))
    'little:1.5@0.3'
    """
    if given is None or isinstance(given, Liars):
        return given
    if not isinstance(given, str):
        raise SettingError(f"liars must be Liars(...), or a text like sign@0.2, not {given!r}")
    text, _, share = given.rpartition("@")
    try:
        number = float(share)
    except ValueError:
        number = -1.0
    if not text or not 0 < number < 1:
        raise SettingError(
            f"cannot read liars {given!r}: say what they do and which share of the clients they are, like sign@0.2"
        )
    lies = lie_of(text)
    return Liars(lies[0] if len(lies) == 1 else tuple(lies), number)


@lru_cache(maxsize=16)
def _drawn(clients: int, liars: int, seed: int) -> frozenset[int]:
    order = numpy_generator(seed, "liars").permutation(clients)
    return frozenset(order[:liars].tolist())


def _scaled(sent: Sent, factor: float) -> Sent:
    return {client: {name: t * factor for name, t in own.items()} for client, own in sent.items()}
