"""Flower's messages, opened and packed: all that is in them is one payload of bytes."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from pflego_light.desk import Desk
from pflego_light.errors import MessageError
from pflego_light.kit import Kit
from pflego_light.terms import Site

_PAYLOAD = "payload"


def answer(kit: Kit, message: Message, context: Context) -> Message:
    """Answer a message of the server."""
    desk = Desk(kit, Site.read(context.node_config))
    kind = message.metadata.message_type
    question = b"" if kind == "query" else payload(message.content)
    return Message(pack(desk.answer(kind, context.run_config, question)), reply_to=message)


def pack(data: bytes) -> RecordDict:
    """Give bytes as the content of a message."""
    return RecordDict({_PAYLOAD: ArrayRecord({_PAYLOAD: Array("uint8", (len(data),), "pflego", data)})})


def payload(content: RecordDict) -> bytes:
    """Give the bytes of a message's content."""
    record = content.get(_PAYLOAD)
    if not isinstance(record, ArrayRecord) or list(record) != [_PAYLOAD]:
        raise MessageError("there is nothing of pflego's in it")
    return bytes(record[_PAYLOAD].data)
