"""A Grid in memory: real messages, packed and unpacked as Flower does, handed to ClientApps at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from pflego.codec import decode
from pflego.deploy.flower.client import app
from pflego.deploy.flower.grid import AskedGrid, introduce
from pflego.deploy.flower.messages import pack, payload
from pflego.weights import Weights

Answer = Callable[[Message, Context], Message]
Facts = dict[str, Any]  # what stands beside tensors, as JSON has it


class NoReplyError(Exception):
    """A node's process ends before its reply is out."""


@dataclass
class Node:
    """A SuperNode: its config, and the app it runs."""

    config: UserConfig
    answer: Answer | ClientApp = app
    key: bytes = b""
    since: str = "2026-01-01"
    asked: list[str] = field(default_factory=list)  # the kinds of the messages it was given


class MemoryGrid(AskedGrid):
    """Nodes by their numbers; one that is taken out of `nodes` has vanished."""

    def __init__(self, config: UserConfig, nodes: dict[int, Node]) -> None:
        self.config = config
        self.nodes = nodes
        self._replies: dict[str, Message] = {}
        introduce()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=number, last_activated_at=node.since, public_key=node.key)
            for number, node in list(self.nodes.items())
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            arrived = carried(message)
            if (node := self.nodes.get(message.metadata.dst_node_id)) is None:
                ids.append("")  # as Flower does for a node that it does not know
                continue
            ids.append(arrived.metadata.message_id)
            node.asked.append(message.metadata.message_type)
            context = Context(1, message.metadata.dst_node_id, node.config, RecordDict(), self.config)
            try:
                reply = node.answer(arrived, context)
            except NoReplyError:
                continue
            except Exception as error:  # as the process of a ClientApp does
                reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=arrived)
            self._replies[arrived.metadata.message_id] = carried(reply)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in message_ids if one in self._replies]


def carried(message: Message) -> Message:
    """Give a message as it is on the other side: taken apart into bytes and put together again."""
    with no_object_id_recompute():
        whole = message.metadata.__dict__["_message_id"] = message.object_id
        contents = {part: one.deflate() for part, one in get_all_nested_objects(message).items()}
    arrived = cast(Message, inflate_object_from_contents(whole, contents))
    arrived.metadata.__dict__["_message_id"] = whole
    return arrived


def opened(content: RecordDict) -> tuple[Weights, Facts]:
    """Give what is in a message: its tensors, and the facts beside them."""
    decoded = decode(payload(content))
    return decoded.tensors, dict(decoded.facts.facts)


def alter(content: RecordDict, change: Callable[[Weights, Facts], object]) -> None:
    """Change what is in a message, in place; the new content has a digest that is right."""
    tensors, facts = opened(content)
    change(tensors, facts)
    content.clear()
    content.update(pack(tensors, facts))
