"""Clients that do not all take part as often: each has a chance of its own, known or estimated.

A contribution is weighted by 1 / pi_i, so that the expected step is everybody's, whoever comes often.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

from pflego.declaration import load_object
from pflego.errors import SettingError, check_positive, shortened
from pflego.federation.client import ClientId
from pflego.federation.draws import Floats, Participation, Positions, check, cohort, spelled
from pflego.randomness import entropy, numpy_generator

Chances: TypeAlias = (
    Mapping[str, float] | Mapping[int, float] | Mapping[ClientId, float] | Callable[[ClientId], float]
)

_ZONES = 24


@dataclass(frozen=True)
class Independent:
    """Every client on its own, with a probability of its own that is known. A cohort may be empty.

    Parameters
    ----------
    of
        pi_i by client id, or a function from an id to it; each above 0 and at most 1.
    """

    of: Chances

    def __post_init__(self) -> None:
        if callable(self.of):
            return
        if not isinstance(self.of, Mapping) or not self.of:
            raise SettingError(
                f"participation: Independent takes a dictionary of client ids and probabilities, or a function, not "
                f"{shortened(self.of)}"
            )
        checked = {str(client): _chance(client, p) for client, p in self.of.items()}
        if len(checked) < len(self.of):
            raise SettingError("participation: two clients of Independent have the same id as a text")
        object.__setattr__(self, "of", checked)

    def check_ids(self, ids: Sequence[ClientId]) -> None:
        """Refuse clients without a chance, and chances without a client."""
        if callable(self.of):
            self._chances(ids)
            return
        names, own = {str(client) for client in ids}, self._by_name
        if without := sorted(names - own.keys()):
            raise SettingError(f"participation: Independent has no probability for {_some(without)}")
        if foreign := sorted(own.keys() - names):
            raise SettingError(
                f"participation: Independent has a probability for {_some(foreign)}, no client"
            )

    def chances(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Floats:
        """Return the same in every round."""
        return self._chances(ids)

    def draw_ids(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Positions:
        """Toss a coin per client."""
        return toss(self._chances(ids), number=number, seed=seed)

    @property
    def _by_name(self) -> Mapping[str, float]:
        return cast(Mapping[str, float], self.of)

    def _chances(self, ids: Sequence[ClientId]) -> Floats:
        if callable(self.of):
            return np.array([_chance(client, self.of(client)) for client in ids])
        return np.array([self._by_name[str(client)] for client in ids])

    def __str__(self) -> str:
        if not callable(self.of):
            return f"independent:{json.dumps(self.of)}"
        name = getattr(self.of, "__qualname__", type(self.of).__qualname__)
        return f"independent:{getattr(self.of, '__module__', '')}:{name}"

    @classmethod
    def read(cls, text: str) -> Independent:
        """Make it of what follows independent: in settings: JSON, a file of it or of CSV, or module:function.

        table.csv:CLIENT:CHANCE takes two columns of a table that may have many rows per client.

        >>> Independent.read('{"a": 0.2, "b": 1}')
        Independent(of={'a': 0.2, 'b': 1.0})
        """
        if text.startswith("{"):
            return cls(_parsed(text, "JSON"))
        path = Path(text)
        if path.suffix == ".json":
            return cls(_parsed(_content(path), text))
        if path.suffix == ".csv":
            return cls(_rows(_content(path), path))
        table, *columns = text.rsplit(":", 2)
        if len(columns) == 2 and Path(table).suffix == ".csv":
            return cls(_of_table(Path(table), *columns))
        function = load_object(text, "participation")
        if not callable(function):
            raise SettingError(f"participation: {text} is no function from a client's id to a probability")
        return cls(function)


@dataclass(frozen=True)
class Daily:
    """Clients in 24 time zones, each more likely to take part at its night than at its day, all independent.

        pi_i(t) = low + (high - low) (1 + cos(2 pi (t / rounds - zone_i / 24))) / 2

    A client's zone is drawn from the seed and its id.

    Parameters
    ----------
    low, high
        The smallest and the largest probability in the course of a day.
    rounds
        Rounds per day.
    """

    low: float
    high: float
    rounds: int = 24
    _zones: dict[tuple[int, ClientId], int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for p in (self.low, self.high):
            check_positive("participation: a probability of Daily", p)
        check_positive("participation: the rounds per day", self.rounds, whole=True)
        if not self.low <= self.high <= 1:
            raise SettingError(
                f"participation: the probabilities of Daily rise from low to high, at most 1, not from {self.low} to "
                f"{self.high}"
            )

    def check_ids(self, ids: Sequence[ClientId]) -> None:
        """Accept any federation."""

    def chances(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Floats:
        """Return what the time of day makes of it."""
        zones = np.array([self._zone(client, seed) for client in ids]) / _ZONES
        phase = 2 * np.pi * (number / self.rounds - zones)
        return np.asarray(self.low + (self.high - self.low) * (1 + np.cos(phase)) / 2)

    def draw_ids(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Positions:
        """Toss a coin per client."""
        return toss(self.chances(ids, number=number, seed=seed), number=number, seed=seed)

    def _zone(self, client: ClientId, seed: int) -> int:
        if (seed, client) not in self._zones:
            self._zones[seed, client] = entropy(seed, "zone", client=client) % _ZONES
        return self._zones[seed, client]

    def __str__(self) -> str:
        return f"daily:{self.low}-{self.high}/{self.rounds}"


@dataclass
class _Intervals:
    """Rounds between visits, so far."""

    since: Positions  # rounds since the last visit
    visits: Positions  # intervals that have ended
    mean: Floats  # of their lengths; 1 where there is none
    number: int = 1  # the round that this is known before


@dataclass(frozen=True)
class Estimated:
    """A process whose chances the server does not know: it takes 1 / pi_i for the mean interval between visits.

    That is FedAU (Wang and Ji, 2024): omega_i(t) is the mean length of i's intervals that ended before round t, and 1
    as long as there is none; an interval ends with a visit, or after `cutoff` rounds without one. It is biased: low
    while a client has hardly been seen, and for good where 1 / pi_i is near the cutoff or above it.

    Parameters
    ----------
    process
        Who really takes part.
    cutoff
        K, the longest interval that is counted.
    """

    process: Participation
    cutoff: int = 50
    _seen: dict[int, tuple[Sequence[ClientId], _Intervals]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_positive("participation: the cutoff of Estimated", self.cutoff, whole=True)

    def check_ids(self, ids: Sequence[ClientId]) -> None:
        """Do as the process does."""
        check(self.process, ids)

    def draw_ids(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Positions:
        """Draw as the process does."""
        return np.array(cohort(self.process, ids, seed=seed, number=number), dtype=np.int64)

    def chances(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Floats:
        """1 / omega_i(t), from the cohorts of all earlier rounds, which are drawn again."""
        known, past = self._seen.get(seed, (ids, None))
        if past is None or past.number > number or (known is not ids and list(known) != list(ids)):
            zeros = np.zeros(len(ids), dtype=np.int64)
            past = _Intervals(zeros.copy(), zeros.copy(), np.ones(len(ids)))
        while past.number < number:
            came = np.zeros(len(ids), dtype=bool)
            came[cohort(self.process, ids, seed=seed, number=past.number)] = True
            past.since += 1
            ended = came | (past.since == self.cutoff)
            past.mean[ended] = (past.visits * past.mean + past.since)[ended] / (past.visits[ended] + 1)
            past.visits[ended] += 1
            past.since[ended] = 0
            past.number += 1
        self._seen[seed] = (ids, past)
        return np.asarray(1 / past.mean)

    def __str__(self) -> str:
        return f"estimated:{self.cutoff}:{spelled(self.process)}"


def toss(chances: Floats, *, number: int, seed: int) -> Positions:
    """Toss a coin per client; give the positions of those who take part."""
    return np.flatnonzero(numpy_generator(seed, "cohort", round_number=number).random(len(chances)) < chances)


def best_chances(
    norms: Mapping[ClientId, float], *, expected: float, least: float = 0.01
) -> dict[str, float]:
    """Give the probabilities under which an unbiased sum varies least, for independent clients.

    The variance of sum_i 1(i takes part) / pi_i v_i is sum_i (1 / pi_i - 1) |v_i|^2. With sum_i pi_i = expected and
    least <= pi_i <= 1 it is smallest where pi_i is proportional to |v_i|, clipped.

    >>> best_chances({"a": 3.0, "b": 1.0, "c": 0.0}, expected=1.0, least=0.1)
    {'a': 0.675, 'b': 0.225, 'c': 0.1}

    Parameters
    ----------
    norms
        |v_i| of each client: a_i times the norm of what it sends.
    expected
        r, the expected number of participants.
    least
        The smallest probability: a client that had little to say may have more to say later.
    """
    sizes = np.array(list(norms.values()), dtype=np.float64)
    check_positive("expected", expected)
    check_positive("least", least)
    if not np.isfinite(sizes).all() or (sizes < 0).any():
        raise SettingError("norms must be finite numbers, none below 0")
    if not least * len(sizes) <= expected <= len(sizes):
        raise SettingError(
            f"expected must be from {least * len(sizes):g} to {len(sizes)}: {len(sizes)} clients, each with a "
            f"probability of {least:g} to 1, not {expected:g}"
        )
    if not sizes.any():
        sizes = np.ones(len(sizes))
    sizes = np.maximum(sizes, sizes.max() * 1e-12)  # so that a factor large enough takes everybody
    low, high = 0.0, 1 / sizes.min()
    for _ in range(200):  # halvings: sum_i clip(c |v_i|) rises with c
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * sizes, least, 1).sum() < expected else (low, middle)
    chances = np.clip(high * sizes, least, 1)
    return {str(client): round(float(p), 12) for client, p in zip(norms, chances, strict=True)}


def variance(norms: Mapping[ClientId, float], chances: Mapping[str, float]) -> float:
    """Give the variance of sum_i 1(i takes part) / pi_i v_i for independent clients, from |v_i| and pi_i."""
    return sum((1 / chances[str(client)] - 1) * size**2 for client, size in norms.items())


def _chance(client: object, p: object) -> float:
    check_positive(f"participation: the probability of client {client!r}", p)
    if p > 1:  # type: ignore[operator]
        raise SettingError(f"participation: the probability of client {client!r} is at most 1, not {p}")
    return float(p)  # type: ignore[arg-type]


def _parsed(text: str, what: str) -> dict[str, float]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise SettingError(f"participation: {what} is not valid JSON: {error}") from error
    if not isinstance(read, dict):
        raise SettingError(f"participation: {what} must hold client ids and probabilities")
    return read


def _rows(text: str, path: Path) -> dict[str, float]:
    """Read lines of an id and a probability, after a line of names."""
    chances: dict[str, float] = {}
    for row in list(csv.reader(text.splitlines()))[1:]:
        try:
            client, p = row
            chances[client] = float(p)
        except ValueError:
            raise SettingError(
                f"participation: {path} must have two columns, client and probability, not the line {row!r}"
            ) from None
    return chances


def _of_table(path: Path, client_column: str, chance_column: str) -> dict[str, float]:
    """Read a client's probability from a table's rows, in all of which it must be the same."""
    content = _content(path)
    delimiter = max(",;\t", key=content.partition("\n")[0].count)
    rows = csv.reader(StringIO(content), delimiter=delimiter)
    names = [name.strip() for name in next(rows, [])]
    for name in (client_column, chance_column):
        if names.count(name) != 1:
            raise SettingError(
                f"participation: {path} must have one column {name!r}; it has {_some(names, most=12)}"
            )
    chances: dict[str, float] = {}
    for row in filter(None, rows):
        cells = dict(zip(names, row, strict=False))
        client, written = (cells.get(name, "").strip() for name in (client_column, chance_column))
        try:
            p = float(written)
        except ValueError:
            raise SettingError(
                f"participation: {path}, column {chance_column!r}: client {client!r} has {written!r}, no probability"
            ) from None
        if chances.setdefault(client, p) != p:
            raise SettingError(
                f"participation: {path}, column {chance_column!r}: client {client!r} has both {chances[client]} and "
                f"{p}; it must have one probability in all its rows"
            )
    return chances


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"participation: {path} is not written in UTF-8") from error
    except OSError as error:
        raise SettingError(f"participation: cannot read {path}: {error.strerror}") from error


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
