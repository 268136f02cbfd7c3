"""Who is there, what they are asked, and what they have answered: shared by the door's threads and the server loop.

A client has one visit at a time: whoever enters last with its token speaks for it, and earlier tabs are told so. A
visit that gives no sign of life is over. An answer is taken once, from the visit that was asked, for a question that
is open; nothing else is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_hex
from threading import Condition
from typing import TypeAlias

from pflego.codec import MessageError, decode
from pflego.errors import UserError

Answer: TypeAlias = bytes | str  # what was asked for, or why there is no answer

_QUERY = "query"


class GoneError(UserError):
    """A visit that is over: enter anew."""


class ReplacedError(UserError):
    """Another visit speaks for this client."""


class ClosedError(UserError):
    """A question that is not open for this visit."""


class EagerError(UserError):
    """Too many visits in too short a time."""


@dataclass
class Question:
    """What the server loop asks of a visitor."""

    kind: str
    content: bytes
    until: float  # by the monotonic clock
    taken: bool = False


@dataclass
class Visit:
    """A tab from when it enters until it goes."""

    client: str
    key: str  # the digest of its token
    session: str
    since: str
    seen: float
    questions: dict[str, Question] = field(default_factory=dict)  # by the ids of messages, in order
    looks: int = 0  # for a question, so far
    left: bool = False  # a page that is loaded anew leaves, too, and is back at once


@dataclass
class Lobby:
    """Keeps count of visits.

    Parameters
    ----------
    silence
        Seconds without a sign of life after which a visit is over.
    grace
        Seconds in which a page that was left may be back.
    pause
        Seconds between two visits of a client, at least.
    """

    silence: float = 60.0
    grace: float = 20.0
    pause: float = 1.0
    finished: bool = False
    _visits: dict[str, Visit] = field(default_factory=dict)  # by client
    _entered: dict[str, float] = field(default_factory=dict)  # by client: when it did so last
    _answers: dict[str, tuple[Answer, float]] = field(
        default_factory=dict
    )  # by the ids of messages, until when
    _changed: Condition = field(default_factory=Condition)

    def enter(self, client: str, key: str) -> str:
        """Begin a visit, in the place of an earlier one; give its secret name."""
        with self._changed:
            now = time.monotonic()
            if now < self._entered.get(client, -self.pause) + self.pause:
                raise EagerError("too many visits: wait a moment")
            self._entered[client] = now
            since = datetime.now(UTC).isoformat()
            self._visits[client] = Visit(client, key, token_hex(16), since, now)
            self._changed.notify_all()
            return self._visits[client].session

    def take(self, client: str, session: str, *, wait: float) -> tuple[str, Question] | None:
        """Give the oldest question that is open, waiting for one if need be; None: there is none yet.

        Whoever looks again without having answered has not heard the question, or not been heard: it is given again. Of
        two that look at a time only the later gets it, since the earlier may have lost its connection.
        """
        end = time.monotonic() + wait
        with self._changed:
            visit = self._visit(client, session)
            visit.looks += 1
            look = visit.looks
            self._changed.notify_all()
            while True:
                visit = self._visit(client, session)
                self._expire(visit)
                if visit.looks != look:
                    return None
                for number, question in visit.questions.items():
                    question.taken = True
                    return number, question
                if self.finished or not self._changed.wait(max(0.0, end - time.monotonic())):
                    return None

    def give(self, client: str, session: str, number: str, answer: Answer) -> None:
        """Take an answer, once."""
        with self._changed:
            visit = self._visit(client, session)
            self._expire(visit)
            question = visit.questions.get(number)
            if question is None or not question.taken:
                raise ClosedError("nobody waits for this answer")
            if question.kind == _QUERY and isinstance(answer, bytes):
                answer = _named(client, answer)
            del visit.questions[number]
            self._answers[number] = answer, question.until

    def beat(self, client: str, session: str) -> None:
        """Take a sign of life."""
        with self._changed:
            self._visit(client, session)

    def leave(self, client: str, session: str) -> None:
        """End a visit; its place is kept for a moment, in which the round waits."""
        with self._changed:
            visit = self._visit(client, session)
            visit.left = True
            visit.seen -= max(0.0, self.silence - self.grace)
            self._changed.notify_all()

    def finish(self) -> None:
        """Tell everybody that the run is finished."""
        with self._changed:
            self.finished = True
            self._changed.notify_all()

    def present(self, known: Mapping[str, str]) -> list[Visit]:
        """List those who are there, and whose token is still good."""
        with self._changed:
            end = time.monotonic() - self.silence
            for visit in [*self._visits.values()]:
                if visit.seen < end or known.get(visit.client) != visit.key:
                    del self._visits[visit.client]
                    self._changed.notify_all()
            return list(self._visits.values())

    def ask(self, session: str, number: str, question: Question) -> bool:
        """Put a question to a visit; False: it is over."""
        with self._changed:
            for visit in self._visits.values():
                if visit.session == session:
                    visit.questions[number] = question
                    self._changed.notify_all()
                    return True
            return False

    def answers(self, numbers: Iterable[str]) -> dict[str, Answer]:
        """Hand out the answers that have arrived to questions."""
        with self._changed:
            found = {one: self._answers.pop(one)[0] for one in numbers if one in self._answers}
            now = time.monotonic()
            for one in [one for one, (_, until) in self._answers.items() if until < now]:
                del self._answers[one]  # nobody has asked for it in time
            return found

    def _visit(self, client: str, session: str) -> Visit:
        visit = self._visits.get(client)
        if visit is None or (visit.left and visit.session == session):
            raise GoneError("this visit is over: enter anew")
        if visit.session != session:
            raise ReplacedError(
                "another tab, or another browser, has taken this client's place: close one of them"
            )
        visit.seen = time.monotonic()
        return visit

    def _expire(self, visit: Visit) -> None:
        now = time.monotonic()
        visit.questions = {number: one for number, one in visit.questions.items() if now < one.until}


def _named(client: str, answer: bytes) -> Answer:
    """Let nobody call itself by another name than that of its token."""
    try:
        said = decode(answer, like={}).facts.facts.get("client")
    except MessageError as error:
        return f"its answer cannot be read: {error}"
    return answer if said == client else f"its token is not for {str(said)[:40]!r}"
