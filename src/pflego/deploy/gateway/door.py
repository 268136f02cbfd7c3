"""HTTP for browsers: the page, the kit, and the conversation with the server loop.

GET   /...                      the page: public
GET   /kit/...                  the kit             with a token, as all that follows
POST  /v1/gateway/who           whom the token is for, and what the run asks of its clients
      /v1/gateway/enter         begin a visit
      /v1/gateway/take          the next question: its bytes, or 204 after a while
      /v1/gateway/give/ID       an answer's bytes, or in text/plain why there is none
      /v1/gateway/here, leave   a sign of life; goodbye

Every request is of a known path, method and size; a body is read only from somebody whose token is good. What is in it
is for the server loop to judge, as it judges what sites on Flower send.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, ClassVar

from pflego.deploy.gateway import tokens
from pflego.deploy.gateway.lobby import ClosedError, EagerError, GoneError, Lobby, ReplacedError
from pflego.errors import FolderError, UserError

log = logging.getLogger("flwr.pflego")

WAIT = 20.0  # seconds that a look for a question takes, at most
_IDLE = 75.0  # seconds that a connection may say nothing
_CONNECTIONS = 256  # at a time
_OF_A_BODY = ("Content-Length", "Transfer-Encoding")
_REASON = 500  # characters of why there is no answer
_API = "/v1/gateway/"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".json": "application/json",
    ".onnx": "application/octet-stream",
}
_HEADERS = {
    # the page runs its own files, talks to this server, and to nobody else
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class House:
    """What is behind the door."""

    lobby: Lobby
    tokens: Path
    config: Mapping[str, object]  # of the run, as clients are told it
    page: Mapping[str, Path]  # by path of the URL
    kit: Mapping[str, Path]
    limit: int  # bytes of a request


class Door(ThreadingHTTPServer):
    """Listens; one thread for every connection, and so many at a time."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], house: House) -> None:
        self.house = house
        self._free = BoundedSemaphore(_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, or close it where there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that have broken; the rest is for the log."""
        log.debug("a connection has ended", exc_info=True)


class _Refusal(Exception):  # noqa: N818  (an answer, no failure)
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE
    server: Door
    _goes_on: bool  # whether another request may follow this one
    _statuses: ClassVar[dict[type[UserError], HTTPStatus]] = {
        GoneError: HTTPStatus.GONE,
        ReplacedError: HTTPStatus.CONFLICT,
        ClosedError: HTTPStatus.NOT_FOUND,
        EagerError: HTTPStatus.TOO_MANY_REQUESTS,
    }

    def version_string(self) -> str:
        return "pflego"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (its name where it is overridden)
        log.debug(format, *args)

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._post)

    def _serve(self, answer: Callable[[str], None]) -> None:
        # a body that stays unread would be taken for the next request
        self._goes_on = not self.close_connection
        self.close_connection |= any(self.headers.get_all(name) for name in _OF_A_BODY)
        try:
            answer(self.path.partition("?")[0])
        except _Refusal as refusal:
            self._refuse(refusal.status, str(refusal))
        except UserError as error:
            status = self._statuses.get(type(error))
            if status is None:
                log.warning("the gateway cannot answer: %s", error)
                self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the server cannot answer: its log says more")
            else:
                self._refuse(status, str(error))

    def _get(self, path: str) -> None:
        house = self.server.house
        if (file := house.page.get(path)) is None:
            if (file := house.kit.get(path)) is None:
                raise _Refusal(HTTPStatus.NOT_FOUND, "there is nothing here")
            self._client()
        try:
            stat = file.stat()
            tag = f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"'
            content = None if self.headers.get("If-None-Match") == tag else file.read_bytes()
        except OSError as error:
            raise FolderError(f"{file} cannot be read: {error.strerror or error}") from error
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Type": _TYPES[file.suffix]}
        if content is None:
            self._answer(HTTPStatus.NOT_MODIFIED, headers=headers)
        else:
            self._answer(HTTPStatus.OK, content, headers)

    def _post(self, path: str) -> None:
        client, key = self._client()
        body = self._body()
        lobby, session = self.server.house.lobby, self.headers.get("Pflego-Session", "")
        match path.removeprefix(_API).split("/") if path.startswith(_API) else []:
            case ["who"]:
                self._json({"client": client, "config": dict(self.server.house.config)})
            case ["enter"]:
                self._json({"session": lobby.enter(client, key)})
            case ["take"]:
                self._take(lobby, client, session)
            case ["give", number]:
                self._give(lobby, client, session, number, body)
            case ["here"]:
                lobby.beat(client, session)
                self._answer(HTTPStatus.NO_CONTENT)
            case ["leave"]:
                lobby.leave(client, session)
                self._answer(HTTPStatus.NO_CONTENT)
            case _:
                raise _Refusal(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _take(self, lobby: Lobby, client: str, session: str) -> None:
        taken = lobby.take(client, session, wait=WAIT)
        if taken is None:
            state = "finished" if lobby.finished else "going on"
            self._answer(HTTPStatus.NO_CONTENT, headers={"Pflego-Run": state})
            return
        number, question = taken
        headers = {"Pflego-Message": number, "Pflego-Kind": question.kind}
        self._answer(HTTPStatus.OK, question.content, {**headers, "Content-Type": "application/octet-stream"})

    def _give(self, lobby: Lobby, client: str, session: str, number: str, body: bytes) -> None:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind not in ("application/octet-stream", "text/plain"):
            raise _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an answer is bytes, or a line of text")
        said = body.decode(errors="replace")[:_REASON] if kind == "text/plain" else body
        lobby.give(client, session, number, said)
        self._answer(HTTPStatus.NO_CONTENT)

    def _client(self) -> tuple[str, str]:
        """Say whose token came with a request, and its digest."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        known = tokens.read(self.server.house.tokens)
        client = tokens.whose(known, token.strip()) if scheme.lower() == "bearer" else None
        if client is None:
            raise _Refusal(HTTPStatus.UNAUTHORIZED, "this token opens nothing: ask the operator for one")
        return client, known[client]

    def _body(self) -> bytes:
        lengths, limit = self.headers.get_all("Content-Length", []), self.server.house.limit
        said = lengths[0] if len(lengths) == 1 else ""
        if self.headers.get_all("Transfer-Encoding") or not (said.isascii() and said.isdigit()):
            self.close_connection = True
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "a request says how long it is")
        if len(said) > 12 or int(said) > limit:
            raise _Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {limit} bytes are read of a request"
            )
        body = self.rfile.read(int(said))
        if len(body) != int(said):
            raise _Refusal(HTTPStatus.BAD_REQUEST, "the request was cut off")
        self.close_connection = not self._goes_on
        return body

    def _json(self, value: Mapping[str, object]) -> None:
        self._answer(HTTPStatus.OK, json.dumps(value).encode(), {"Content-Type": _TYPES[".json"]})

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(status, f"{why}\n".encode(), {"Content-Type": "text/plain; charset=utf-8"})

    def _answer(
        self, status: HTTPStatus, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        given = {"Cache-Control": "no-store", **_HEADERS, **(headers or {})}
        if status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            given["Content-Length"] = str(len(body))
        if self.close_connection:
            given["Connection"] = "close"
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
