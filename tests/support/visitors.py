"""A gateway on loopback, and visitors that speak HTTP with it: full clients in the place of browsers."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from flwr.app import Context, Message, RecordDict

from pflego.deploy.flower.client import app
from pflego.deploy.flower.messages import content_of, payload
from pflego.deploy.gateway import tokens
from pflego.deploy.gateway.door import Door, House
from pflego.deploy.gateway.grid import JointGrid
from pflego.deploy.gateway.lobby import Lobby
from pflego.deploy.gateway.opening import PAGE
from pflego_light.desk import Desk
from pflego_light.errors import LightError
from pflego_light.gateway import Gateway
from tests.support.grid import MemoryGrid, carried

LIMIT = 100_000
Sent = Callable[[str, bytes], bytes]  # what becomes of an answer on its way: kind and bytes to bytes


@dataclass(frozen=True)
class FullDesk:
    """A full client's answers, as bytes."""

    node: Mapping[str, bool | float | int | str]
    changed: Sent = lambda kind, answer: answer

    def answer(self, kind: str, run_config: Mapping[str, Any], question: bytes) -> bytes:
        content = content_of(question) if question else RecordDict()
        context = Context(1, 1, dict(self.node), RecordDict(), dict(run_config))
        try:
            return self.changed(kind, payload(app(carried(Message(content, 1, kind)), context).content))
        except ValueError as error:
            raise LightError(str(error)) from error


@dataclass
class Open:
    """A gateway that is open."""

    house: House
    port: int
    grid: JointGrid
    given: dict[str, str]  # tokens by client
    _visitors: list[Thread] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def visit(self, client: str, desk: FullDesk | Desk) -> None:
        """Let a client take part, in a thread of its own, until the run is finished."""
        gateway = Gateway(self.address, self.given[client])
        assert gateway.who() == client
        self._visitors.append(Thread(target=gateway.take_part, args=(desk,), daemon=True))
        self._visitors[-1].start()

    def request(
        self, method: str, path: str, *, token: str = "", body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Send a request as it is; give status, body and headers. An underscore in a header's name is a dash."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            named["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.headers)
        finally:
            connection.close()

    def post(self, what: str, client: str, session: str = "", body: bytes = b"", **headers: str) -> Any:
        return self.request(
            "POST",
            f"/v1/gateway/{what}",
            token=self.given[client],
            body=body,
            Pflego_Session=session,
            **{"Content_Type": "application/octet-stream", **headers},
        )


@contextmanager
def gateway(
    folder: Path,
    names: list[str],
    flower: MemoryGrid | None = None,
    *,
    config: Mapping[str, object] | None = None,
    kit: Mapping[str, Path] | None = None,
    silence: float = 60.0,
) -> Iterator[Open]:
    """Open a gateway for some clients, beside sites on Flower."""
    file = folder / "tokens.json"
    given = {name: tokens.give(file, name) for name in names}
    house = House(
        Lobby(silence, pause=0.0),
        file,
        dict(config or {}),
        {f"/{one.relative_to(PAGE).as_posix()}": one for one in PAGE.rglob("*.*")}
        | {"/": PAGE / "index.html"},
        dict(kit or {}),
        LIMIT,
    )
    door = Door(("127.0.0.1", 0), house)
    thread = Thread(target=door.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    opened = Open(house, int(door.server_address[1]), JointGrid(house.lobby, file, flower), given)
    try:
        yield opened
    finally:
        house.lobby.finish()
        for visitor in opened._visitors:
            visitor.join(timeout=10)
        door.shutdown()
        door.server_close()
        thread.join()
