"""Who is a member when: clients that come while others have trained already, and clients that go.

In round t there are I_t members, with the alpha_i(t) that their sample counts make among them, and a cohort is drawn
among them alone. A client that comes for the first time gets a state for the shared weights as they are then. One that
goes keeps its state where it is, and finds it again if it comes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pflego.declaration import load_object
from pflego.errors import SettingError, check_positive, shortened
from pflego.federation.client import ClientId

There: TypeAlias = npt.NDArray[np.bool_]
When: TypeAlias = int | Sequence[int]
Rounds: TypeAlias = Mapping[str, When] | Mapping[int, When] | Mapping[ClientId, When]


@dataclass(frozen=True)
class Population:
    """Who is a member when. Who is in neither mapping is one from round 1 to the end.

    Parameters
    ----------
    join
        By client id, the round from which on it is a member; the rounds, where it comes more than once.
    leave
        By client id, the round or rounds from which on it is none. Who leaves before it joins is a member from round 1,
        goes, and comes back.
    members
        Instead of both, a function (seed, round) that gives the ids of a round's members.
    steps
        Steps on a newcomer's head; None: until more of them would hardly lower its loss.
    """

    join: Rounds = field(default_factory=dict)
    leave: Rounds = field(default_factory=dict)
    members: Callable[[int, int], Collection[ClientId]] | None = None
    steps: int | None = None
    # by client, and by round in their order, whether it comes or goes
    _events: dict[str, dict[int, bool]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _seen: dict[int, tuple[int, There]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = {name: _rounds(name, getattr(self, name)) for name in ("join", "leave")}
        for name, rounds in given.items():
            told = {client: when[0] if len(when) == 1 else when for client, when in rounds.items()}
            object.__setattr__(self, name, told)
        if self.members is not None and (not callable(self.members) or self.join or self.leave):
            raise SettingError(
                "population: give join and leave, or a function members(seed, round), not both"
            )
        if self.steps is not None:
            check_positive("population: the steps on a newcomer's head", self.steps, whole=True)
        for client in {**given["join"], **given["leave"]}:
            come, gone = given["join"].get(client, ()), given["leave"].get(client, ())
            if both := {*come} & {*gone}:
                raise SettingError(f"population: client {client!r} joins and leaves in round {min(both)}")
            self._events[client] = {number: number in come for number in sorted((*come, *gone))}

    def there(self, ids: Sequence[ClientId], *, number: int, seed: int) -> There:
        """Say who is a member in a round, in the order of ids."""
        if self.members is not None:
            present = {str(client) for client in self.members(seed, number)}
            if foreign := sorted(present - {str(client) for client in ids}):
                raise SettingError(
                    f"population: the federation has no client {foreign[0]!r} (round {number})"
                )
            return np.array([str(client) in present for client in ids])
        there = np.ones(len(ids), dtype=bool)
        for position, client in enumerate(ids) if self._events else ():
            if (events := self._events.get(str(client))) is not None:
                happened = [comes for round_number, comes in events.items() if round_number <= number]
                there[position] = happened[-1] if happened else not next(iter(events.values()))
        return there

    @property
    def comers(self) -> list[str]:
        """The clients that come, by name."""
        return [client for client, events in self._events.items() if any(events.values())]

    @property
    def goers(self) -> list[str]:
        """The clients that go, by name."""
        return [client for client, events in self._events.items() if not all(events.values())]

    def events(self, client: ClientId) -> Mapping[int, bool]:
        """Map round to whether a client comes or goes then, where it is named."""
        return self._events.get(str(client), {})

    def with_event(self, client: ClientId, number: int, *, comes: bool) -> Population:
        """Give the same but for a client that comes or goes in a round, whatever was said of it in this round."""
        events = {**self._events, str(client): {**self.events(client), number: comes}}

        def rounds(kind: bool) -> dict[str, list[int]]:
            return {
                name: [t for t, comes in own.items() if comes is kind]
                for name, own in events.items()
                if kind in own.values()
            }

        return replace(self, join=rounds(True), leave=rounds(False))

    def changes(self, rounds: int) -> list[int]:
        """List the rounds in which somebody may have come or gone, the first one included."""
        if self.members is not None:
            return list(range(1, rounds + 1))
        numbers = {1, *(number for events in self._events.values() for number in events)}
        return sorted(number for number in numbers if number <= rounds)

    def check(self, ids: Sequence[ClientId]) -> None:
        """Refuse clients that the federation does not have."""
        names = {str(client) for client in ids}
        for client in self._events:
            if client not in names:
                raise SettingError(f"population: the federation has no client {client!r}")

    def newcomers(self, ids: Sequence[ClientId], *, number: int, seed: int) -> list[int]:
        """List the positions of those who are members for the first time, after a round 1 without them."""
        comes = any(events.get(number, False) for events in self._events.values())
        if number == 1 or (self.members is None and not comes):
            return []
        known, before = self._seen.get(seed, (0, np.zeros(len(ids), dtype=bool)))
        if known >= number or len(before) != len(ids):
            known, before = 0, np.zeros(len(ids), dtype=bool)
        for earlier in self.changes(number - 1):
            if earlier > known:
                before = before | self.there(ids, number=earlier, seed=seed)
        self._seen[seed] = (number - 1, before)
        return np.flatnonzero(self.there(ids, number=number, seed=seed) & ~before).tolist()

    def __str__(self) -> str:
        if self.members is not None:
            name = getattr(self.members, "__qualname__", type(self.members).__qualname__)
            return f"{getattr(self.members, '__module__', '')}:{name}"
        told = {"join": self.join, "leave": self.leave, "steps": self.steps}
        return json.dumps({name: value for name, value in told.items() if value})


def population_of(given: object) -> Population | None:
    """Make a population of what was given: one itself, or a text: JSON, a file of it, or module:function.

    >>> population_of('{"join": {"ward-7": 20}}')
    Population(join={'ward-7': 20}, leave={}, members=None, steps=None)
    """
    if given is None or isinstance(given, Population):
        return given
    if isinstance(given, Mapping):
        return _of(given, "population")
    if not isinstance(given, str):
        raise SettingError(f"population must be a Population(join=..., leave=...), not {shortened(given)}")
    if given.startswith("{"):
        return _of(_parsed(given, "its JSON"), "population")
    if given.endswith(".json"):
        try:
            content = Path(given).read_text()
        except OSError as error:
            raise SettingError(f"population: cannot read {given}: {error.strerror}") from error
        return _of(_parsed(content, given), given)
    function = load_object(given, "population")
    if not callable(function):
        raise SettingError(f"population: {given} is no function (seed, round)")
    return Population(members=function)


def _of(told: Mapping[str, object], what: str) -> Population:
    if unknown := sorted(told.keys() - {"join", "leave", "steps"}):
        raise SettingError(f"{what}: {unknown[0]!r} is unknown; it may have join, leave and steps")
    return Population(**told)  # type: ignore[arg-type]


def _parsed(text: str, what: str) -> Mapping[str, object]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise SettingError(f"population: {what} is not valid JSON: {error}") from error
    if not isinstance(read, dict):
        raise SettingError(f"population: {what} must have join and leave, by client id")
    return read


def _rounds(name: str, given: object) -> dict[str, tuple[int, ...]]:
    """Map client id to the rounds in which it comes, or goes, ascending."""
    if not isinstance(given, Mapping):
        raise SettingError(f"population: {name} must be a dictionary of client ids and rounds, not {given!r}")
    found = {}
    for client, when in given.items():
        numbers = when if isinstance(when, Sequence) and not isinstance(when, str) else [when]
        for number in numbers:
            check_positive(f"population: {name} of client {client!r}", number, whole=True)
        if not numbers:
            raise SettingError(f"population: {name} of client {client!r} names no round")
        found[str(client)] = tuple(sorted({int(number) for number in numbers}))
    return found
