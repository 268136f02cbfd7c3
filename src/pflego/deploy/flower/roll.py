"""Who is there: which node of Flower's speaks for which client, at this moment.

A node has a number, and a key where nodes are authenticated; the federation knows clients by their own ids. So every
node that turns up is asked who it is, and asked again whenever it has been away.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pflego.deploy.flower.facts import Facts
from pflego.deploy.flower.messages import plain, reason, unpack_facts
from pflego.errors import UserError
from pflego.federation.roster import ClientId

_PATIENCE = 180.0  # seconds that a node may take to say who it is before it is asked again
_AGAIN = 60.0  # seconds until a node that could not say who it is is asked again

log = logging.getLogger("flwr.pflego")


@dataclass(frozen=True)
class Connection:
    """A node from when it came until it goes."""

    node: int
    since: str
    key: str  # a digest of its public key; empty if it has none


@dataclass(frozen=True)
class Present:
    """A client that is there, and the node that speaks for it."""

    facts: Facts
    connection: Connection


class Roll:
    """Keeps count of who is there. `admit` raises a `UserError` for a client that is not welcome."""

    def __init__(self, grid: Grid) -> None:
        self.admit: Callable[[Present], None] = lambda _: None
        self._grid = grid
        self._known: dict[Connection, Facts] = {}
        self._asked: dict[str, tuple[Connection, float]] = {}  # by the id of the message, with the time
        self._refused: dict[Connection, float] = {}  # until when it is not asked again
        self._doubtful: set[Connection] = set()  # nobody waits for these

    def only(self, admit: Callable[[Present], None]) -> None:
        """Admit only these from now on; those who are here already are judged again."""
        self.admit = admit
        for connection, facts in list(self._known.items()):
            try:
                admit(Present(facts, connection))
            except UserError as error:
                del self._known[connection]
                self._refuse(connection, error, inf)

    def ask_again(self) -> None:
        """Ask those who were refused once more: others may be welcome by now."""
        self._doubtful -= self._refused.keys()
        self._refused.clear()

    def call(self) -> dict[ClientId, Present]:
        """See who is there now; ask newcomers who they are. Their answers are seen in a later call."""
        here = {
            Connection(node.node_id, node.last_activated_at, _digest(node.public_key))
            for node in self._grid.get_nodes()
        }
        now = time.monotonic()
        for reply in self._grid.pull_messages(list(self._asked)) if self._asked else []:
            self._hear(reply)
        self._known = {connection: facts for connection, facts in self._known.items() if connection in here}
        self._refused = {c: until for c, until in self._refused.items() if c in here and now < until}
        for client_id, (connection, when) in list(self._asked.items()):
            if connection not in here or now > when + _PATIENCE:
                self._doubtful.add(connection)
                del self._asked[client_id]
        busy = {connection for connection, _ in self._asked.values()}
        new = sorted(here - busy - self._known.keys() - self._refused.keys(), key=lambda c: c.node)
        for connection, client_id in zip(new, self._ask(new), strict=True):
            if client_id:  # a node that has just gone gets no message
                self._asked[client_id] = connection, now
        return self._clients()

    @property
    def waiting(self) -> bool:
        """Whether somebody who came lately has yet to say who it is."""
        return any(connection not in self._doubtful for connection, _ in self._asked.values())

    def _ask(self, connections: list[Connection]) -> list[str]:
        messages = [Message(RecordDict(), c.node, MessageType.QUERY, ttl=_PATIENCE) for c in connections]
        return list(self._grid.push_messages(messages)) if messages else []

    def _hear(self, reply: Message) -> None:
        connection, _ = self._asked.pop(reply.metadata.reply_to_message_id)
        try:
            if reply.has_error():
                self._refuse(connection, f"it could not say who it is: {reason(reply)}", _AGAIN)
                return
            facts = Facts.read(unpack_facts(reply.content))
            self.admit(Present(facts, connection))
        except UserError as error:
            self._refuse(connection, error, inf)
            return
        self._known[connection] = facts
        log.info("node %d is client %r, with %d samples", connection.node, facts.client, facts.samples)

    def _refuse(self, connection: Connection, why: object, seconds: float) -> None:
        log.warning("node %d is left out: %s", connection.node, plain(why))
        self._refused[connection] = time.monotonic() + seconds
        self._doubtful.add(connection)

    def _clients(self) -> dict[ClientId, Present]:
        """Map client id to who is present; where two nodes claim one, the one that came last has it."""
        arrived = sorted(self._known.items(), key=lambda known: (known[0].since, known[0].node))
        return {facts.client: Present(facts, connection) for connection, facts in arrived}


def _digest(key: bytes) -> str:
    return blake2b(key, digest_size=12).hexdigest() if key else ""
