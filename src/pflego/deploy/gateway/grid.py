"""Visitors and Flower's nodes as one grid: the server loop asks and hears both alike, and checks both alike."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from secrets import token_hex

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from pflego.deploy.flower.grid import AskedGrid, introduce
from pflego.deploy.flower.messages import content_of, payload
from pflego.deploy.gateway import tokens
from pflego.deploy.gateway.lobby import Answer, Lobby, Question


class JointGrid(AskedGrid):
    """What a server loop sees.

    Parameters
    ----------
    lobby
        Where visitors are.
    file
        Of their tokens; it is read again at every look, so that a token can be taken back.
    flower
        The grid of sites on Flower; None: there are visitors alone.
    """

    def __init__(self, lobby: Lobby, file: Path, flower: Grid | None = None) -> None:
        self._lobby, self._file, self._flower = lobby, file, flower
        self._sessions: dict[int, str] = {}  # by the number of a node
        self._asked: dict[str, Message] = {}  # by its id
        if flower is None:
            introduce()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """List all who are there."""
        visits = self._lobby.present(tokens.read(self._file))
        self._sessions = {_number(visit.session): visit.session for visit in visits}
        own = [
            NodeInfo(node_id=_number(one.session), last_activated_at=one.since, public_key=one.key.encode())
            for one in visits
        ]
        return [*([] if self._flower is None else self._flower.get_nodes()), *own]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; an empty id is of somebody who has just gone."""
        all_of_them = list(messages)
        theirs = [one for one in all_of_them if one.metadata.dst_node_id not in self._sessions]
        ids = iter([] if self._flower is None or not theirs else self._flower.push_messages(theirs))
        return [
            self._ask(one) if one.metadata.dst_node_id in self._sessions else next(ids, "")
            for one in all_of_them
        ]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch replies that have arrived."""
        wanted = list(message_ids)
        own = [one for one in wanted if one in self._asked]
        theirs = [one for one in wanted if one not in self._asked]
        found = [_reply(self._asked.pop(one), said) for one, said in self._lobby.answers(own).items()]
        return [*([] if self._flower is None or not theirs else self._flower.pull_messages(theirs)), *found]

    def _ask(self, message: Message) -> str:
        number, metadata = token_hex(16), message.metadata
        content = payload(message.content) if len(message.content) else b""
        question = Question(metadata.message_type, content, time.monotonic() + metadata.ttl)
        if not self._lobby.ask(self._sessions[metadata.dst_node_id], number, question):
            return ""
        metadata.__dict__["_message_id"] = number
        self._forget()
        self._asked[number] = message
        return number

    def _forget(self) -> None:
        """Drop messages whose time is up: nobody answers them any more."""
        now = time.time()
        self._asked = {
            number: one
            for number, one in self._asked.items()
            if now < one.metadata.created_at + one.metadata.ttl
        }


def _number(session: str) -> int:
    """Give a visit a number among Flower's nodes, whose own are random and as long."""
    return int(session[:16], 16) | 1 << 63


def _reply(message: Message, answer: Answer) -> Message:
    if isinstance(answer, str):
        error = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=answer)
        return Message(error, reply_to=message)
    return Message(content_of(answer), reply_to=message)
