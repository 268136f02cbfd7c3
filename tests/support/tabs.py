"""Clients in JavaScript, without a browser: the page's own modules in a process of node, asked in memory."""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from pflego.codec import decode
from pflego.deploy.flower.messages import content_of, payload
from pflego.deploy.gateway.opening import PAGE, RUNTIME
from pflego.errors import UserError
from pflego.weights import Weights

WEB = Path(__file__).parents[2] / "web"
NODE = shutil.which("node")
HAS_RUNTIME = all((PAGE / "runtime" / name).is_file() for name in RUNTIME)
needs_node = pytest.mark.skipif(
    not (NODE and HAS_RUNTIME), reason="needs node, and onnxruntime-web by `make web`"
)


class RefusedError(UserError):
    """What a client in JavaScript refuses, in its words."""


@dataclass
class Tabs:
    """Clients in one process."""

    process: subprocess.Popen[str]

    def ask(self, **line: object) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "broken" not in said, said["broken"]
        if "refused" in said:
            raise RefusedError(said["refused"])
        return said

    def open(self, client: str, kit: Path, data: Path) -> None:
        self.ask(open=client, kit=str(kit), data=str(data))

    def answer_bytes(self, client: str, kind: str, config: Mapping[str, object], question: bytes) -> bytes:
        said = self.ask(ask=client, kind=kind, config=dict(config), question=b64encode(question).decode())
        return b64decode(said["answer"])

    def answer(self, message: Message, context: Context) -> Message:
        """Answer as a ClientApp does."""
        kind = message.metadata.message_type
        question = payload(message.content) if len(message.content) else b""
        client = str(context.node_config["client-id"])
        return Message(
            content_of(self.answer_bytes(client, kind, context.run_config, question)), reply_to=message
        )

    def state(self, client: str) -> Weights:
        """What a client keeps after its last round."""
        [kept] = self.ask(state=client)["states"].values()
        tensors = decode(b64decode(kept)).tensors
        return {
            name.removeprefix("after/"): one for name, one in tensors.items() if name.startswith("after/")
        }

    def notes(self, client: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask(state=client)["answers"]
        return found


@contextmanager
def tabs() -> Iterator[Tabs]:
    assert NODE
    words = [NODE, str(WEB / "desks.mjs")]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Tabs(process)
    finally:
        process.kill()
        process.communicate()
