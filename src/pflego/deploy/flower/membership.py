"""Who is a member in which round, where clients come and go while a run goes on.

A client joins where the run's population names it, or its operator lets it in (`pflego deploy member join`): in the
first round from then on before which its site has reported in and made a state ready for the weights as they are. It
leaves where the population or the operator says so: nobody asks it or waits for it any more, its state stays on its own
disk, and it finds it there if it comes back.

What is decided is written down before the round is played. A round that is played again has the members it had.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from pflego.codec import some
from pflego.deploy import requests
from pflego.deploy.flower.app_config import Deployment
from pflego.deploy.flower.gathering import admit, capped, check_claims, in_order, kind, member
from pflego.deploy.flower.roll import Present, Roll
from pflego.errors import SettingError, UserError
from pflego.federation.members import Members
from pflego.federation.population import Population
from pflego.federation.remote import RemoteFederation
from pflego.federation.roster import ClientId

Welcome: TypeAlias = Callable[[Members, Sequence[ClientId]], Collection[ClientId]]
Check: TypeAlias = Callable[[RemoteFederation], None]

log = logging.getLogger("flwr.pflego")


@dataclass
class Membership:
    """Decides who is a member.

    Parameters
    ----------
    folder
        The run's.
    members
        Who they are, and were.
    roll
        Who is there.
    deployment
        Limits of what is believed and waited for.
    population
        Who is to come and to go.
    fits
        Tells whether the shared weights would be as they are with other members.
    poll
        Seconds between two looks at who is there.
    """

    folder: Path
    members: Members
    roll: Roll
    deployment: Deployment
    population: Population
    fits: Callable[[Members], bool]
    poll: float = 1.0
    _wanted: Population = field(init=False)  # with what the operator has asked for meanwhile
    _claims: dict[str, str] = field(init=False, default_factory=dict)  # with which key somebody first came
    _told: set[str] = field(init=False, default_factory=set)  # lines of the log that need not be said again

    def __post_init__(self) -> None:
        self._wanted = _both(self.population, self.members.requests)
        names = {str(client.id) for client in self.members.clients}
        for name in {*self.population.goers} - names - {*self.population.comers}:
            raise SettingError(f"population: the federation has no client {name!r}")
        self.roll.only(self.admit)
        if self.awaited:
            self.roll.ask_again()

    @property
    def awaited(self) -> list[str]:
        """The names of those who may still join."""
        known = {str(client.id) for client in self.members.clients}
        return [name for name in self._wanted.comers if name not in known]

    def waited_for(self, number: int) -> set[ClientId]:
        """Give the members of a round, but for those of whom the operator has said since that they are gone."""
        last = {one.client: one.what for one in requests.read(self.folder)}
        return {one.id for one in self.members.there(number) if last.get(str(one.id)) != "leave"}

    def admit(self, present: Present) -> None:
        """Refuse who is neither a member nor awaited, or is not what it was, or does not fit."""
        facts, key = present.facts, present.connection.key
        if str(facts.client) not in self.awaited:
            admit(self.members, present)
            return
        check_claims(facts, self.deployment)
        theirs, ours = kind(facts), kind(self.members)
        if differing := [name for name in theirs if theirs[name] != ours[name]]:
            raise UserError(f"client {facts.client!r} differs from the others in the {some(differing)}")
        if not self.fits(self.members.enlarged(member(present, 0, self.deployment), facts.classes)):
            raise UserError(
                f"client {facts.client!r} has classes that the shared head has no place for: leave those samples out, "
                "or train with a method whose heads are personal"
            )
        if self.deployment.pin_keys and self._claims.setdefault(str(facts.client), key) != key:
            raise UserError(f"client {facts.client!r} is there already, with another key")

    def settle(self, number: int, welcome: Welcome, check: Check) -> None:
        """Decide who is a member in a round, unless that was decided before.

        Parameters
        ----------
        number
            Of the round.
        welcome
            Lets newcomers make their states ready, in a federation to which they belong; gives those who have.
        check
            Refuses members that the run cannot go on with.
        """
        if number > self.members.settled:
            self._listen(number)
            self.members = replace(self._decide(number, welcome, check), settled=number)
            self.members.save(self.folder)

    def federation(self, number: int) -> RemoteFederation:
        """Make the federation of a round."""
        return self._federation(self.members, number)

    def _federation(self, members: Members, number: int) -> RemoteFederation:
        """Make the federation of some members: how much each counts for in a round is reckoned among those there."""
        there = members.there(number)
        counts = capped([one.claimed for one in there], self.deployment.max_share)
        counted = {one.id: count for one, count in zip(there, counts, strict=True)}
        known = {str(one.id) for one in members.clients}
        return members.federation(
            counted=[counted.get(one.id, one.counted) for one in members.clients],
            awaited=[name for name in self.population.comers if name not in known],
        )

    def _listen(self, number: int) -> None:
        """Take what the operator has asked for since the last round as of this one."""
        asked = requests.read(self.folder)
        new, wishes = asked[self.members.heard :], self.members.requests
        for one in new:
            log.info("round %d: the operator lets client %r %s", number, one.client, one.what)
            wishes = wishes.with_event(one.client, number, comes=one.what == "join")
        if new:
            self.members = replace(self.members, requests=wishes, heard=len(asked))
            self._wanted = _both(self.population, wishes)
            self.roll.ask_again()

    def _decide(self, number: int, welcome: Welcome, check: Check) -> Members:
        there = {one.id for one in self.members.there(number)}
        known = [one.id for one in self.members.clients]
        wanted = {one for one in [*known, *self.awaited] if self._wants(one, number)}
        if wanted == there:
            return self.members
        here = self._here(wanted - there)
        gone = [one for one in known if one in there - wanted]
        back = [here[one] for one in known if one in wanted - there and one in here]
        new = [one for one in in_order(here.values()) if str(one.facts.client) in wanted - {*known}]
        for name in sorted({*map(str, wanted - there)} - {str(one.facts.client) for one in (*back, *new)}):
            self._tell(f"client {name!r} is due and not here: it joins when it is")
        decided = self._changed(number, [*back, *new], gone, check)
        if newcomers := [one.id for one in decided.clients[len(known) :]]:
            ready = welcome(decided, newcomers)
            come = [*back, *(one for one in new if one.facts.client in ready)]
            decided = self._changed(number, come, gone, check)
        was, now = there, {one.id for one in decided.there(number)}
        for client in [one.id for one in decided.clients if one.id in was ^ now]:
            log.info("round %d: client %r %s", number, client, "joins" if client in now else "leaves")
        return decided

    def _changed(
        self, number: int, come: Sequence[Present], gone: Sequence[ClientId], check: Check
    ) -> Members:
        """Let clients come and go, one after the other; those stay as they are whose change the run cannot have."""
        decided = self.members
        changes = [(one.facts.client, one) for one in come] + [(client, None) for client in gone]
        for client, present in changes:
            proposed = decided
            if present is not None and client not in {one.id for one in decided.clients}:
                newcomer = member(present, present.facts.claimed, self.deployment)
                proposed = decided.enlarged(newcomer, present.facts.classes)
            population = proposed.population or Population()
            event = population.with_event(client, number, comes=present is not None)
            proposed = replace(proposed, population=event)
            try:
                check(self._federation(proposed, number))
            except SettingError as error:
                self._tell(f"client {client!r} cannot {'leave' if present is None else 'join'}: {error}")
            else:
                decided = proposed
        return decided

    def _wants(self, client: ClientId, number: int) -> bool:
        return bool(self._wanted.there([client], number=number, seed=0)[0])

    def _here(self, wanted: Collection[ClientId]) -> dict[ClientId, Present]:
        """See who is there; where somebody who is wanted may be among those who are yet to say who they are, wait."""
        end = time.monotonic() + self.deployment.reply_timeout
        while True:
            here = self.roll.call()
            missing = {*map(str, wanted)} - {*map(str, here)}
            if not missing or not self.roll.waiting or time.monotonic() >= end:
                return here
            time.sleep(self.poll)

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            log.warning("%s", line)


def _both(population: Population, asked: Population) -> Population:
    """Give what is wanted in all: where the operator has asked for something in a round, that is what counts."""
    for client in dict.fromkeys([*asked.comers, *asked.goers]):
        for number, comes in asked.events(client).items():
            population = population.with_event(client, number, comes=comes)
    return population
